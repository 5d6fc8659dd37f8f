"""Names and paths that no folder of this machine can have."""

from __future__ import annotations

import pytest

from agl_core.config.loader import resolve
from agl_core.errors import ConfigError

NAMES = [
    "",
    " ",
    ".",
    "..",
    "a/b",
    "../up",
    "a\\b",
    "nul\0",
    "line\nbreak",
    "x" * 300,
    "\U0001f378" * 64,
    "CON",
    "com1.txt",
    "ends.",
    " begins",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_cannot_bear_a_name_that_no_folder_can(name):
    """D7: the error names the key, before anything is written."""
    with pytest.raises(ConfigError, match=r"Configuration: name = .*: a run's name is"):
        resolve({"name": name})


@pytest.mark.parametrize("name", ["run", "a.b", "lauf-1_\u00e9", "x" * 255, ".hidden"])
def test_other_names_are_left_as_they_are(name):
    assert resolve({"name": name}).name == name


@pytest.mark.parametrize(
    "address", ["s3://bucket/runs", "gs://b", "hdfs://h:9000/x", "file:///tmp"]
)
def test_a_directory_is_on_this_machine(address):
    """F3: no local folder of that name."""
    with pytest.raises(ConfigError, match=r"directory = .* is an address .* once it has ended"):
        resolve({"directory": address})


def test_a_path_holds_no_nul():
    with pytest.raises(ConfigError, match="NUL"):
        resolve({"directory": "a\0b"})
