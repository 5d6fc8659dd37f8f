"""G6: what commands say where only the base dependencies are installed."""

import os
import subprocess
import sys

import pytest

from agl_core.errors import pip_line
from tests.installed import INSTALLED

if not INSTALLED:
    pytest.skip("agl-core is not installed: it has no extras", allow_module_level=True)

HIDDEN = """
import sys
from importlib import metadata

from agl_core.plugins import requirements

KEPT = {each.name.lower() for each in requirements.requirements("agl-core", None)}
NAMES = {
    each.name.lower()
    for extra in metadata.metadata("agl-core").get_all("Provides-Extra")
    for each in requirements.requirements("agl-core", extra)
} - KEPT
MODULES = {name.replace("-", "_") for name in NAMES} | {"huggingface_hub", "httpx", "httpx2"}


class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MODULES:
            return None
        return self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)


version = metadata.version


def hidden(name):
    if HIDE_METADATA and name.lower() in NAMES:
        raise metadata.PackageNotFoundError(name)
    return version(name)
"""

EVERY_COMMAND = (
    HIDDEN
    + """
import click
from agl_core._builtin import load_plugins
from agl_core.cli.group import cli

sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
metadata.version = hidden
commands = load_plugins().registry("commands")
for each in commands.registrations():
    # Fetching looks the name of a model up before it imports anything of the extra.
    if each.extra is None or (each.name == "fetch" and not HIDE_METADATA):
        continue
    if ".--" in each.name:  # an option of another command
        continue
    command = commands.resolve(each.name)
    if isinstance(command, click.Group):  # alone it lists its commands
        continue
    arguments = ["." for part in command.params if isinstance(part, click.Argument)]
    print("asked:", each.name, each.extra, flush=True)
    status = cli.main([*each.name.split('.'), *arguments], standalone_mode=False)
    print("status:", status, flush=True)
"""
)


def run(code, **settings):
    head = "".join(f"{name} = {value!r}\n" for name, value in settings.items())
    done = subprocess.run(
        [sys.executable, "-c", head + code],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        env={**os.environ, "AGL_DISABLE_PLUGINS": ""},
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("uninstalled", [True, False])
def test_every_command_of_an_extra_names_its_pip_line(uninstalled):
    """G6: `agl demo` and others say what to install, in one line and at once."""
    done = run(EVERY_COMMAND, HIDE_METADATA=uninstalled)
    rows = [line.split() for line in done.stdout.splitlines()]
    asked = {row[1]: row[2] for row in rows if row[:1] == ["asked:"]}
    assert asked["demo"] == "demo"
    assert {row[1] for row in rows if row[:1] == ["status:"]} == {"1"}
    errors = done.stderr.splitlines()
    assert len(errors) == len(asked), done.stderr
    for error, extra in zip(errors, asked.values(), strict=True):
        assert error.startswith("Error: Plugin ")
        if uninstalled:
            assert pip_line(extra) in error


def test_serving_weights_names_the_pip_line_of_the_engine(tmp_path):
    """G6: `agl serve` needs no extra for prompts at an endpoint, and one for weights."""
    for name in ("config.json", "model.safetensors", "tokenizer_config.json", "tokenizer.json"):
        (tmp_path / name).write_text('{"chat_template": "x", "model_type": "llama"}')
    code = HIDDEN + (
        "from agl_core.cli.group import cli\n"
        "sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]\n"
        f"print('status:', cli.main(['serve', {str(tmp_path)!r}], standalone_mode=False))\n"
    )
    done = run(code, HIDE_METADATA=False)
    assert done.stdout == "status: 1\n"
    assert pip_line("torch") in done.stderr


def test_help_needs_no_extra():
    """G6: what a command takes can be read before it is installed."""
    code = HIDDEN + (
        "from agl_core.cli.group import cli\n"
        "sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]\n"
        "metadata.version = hidden\n"
        "assert cli.main(['fetch', '--help'], standalone_mode=False) == 0\n"
    )
    assert "NAME" in run(code, HIDE_METADATA=True).stdout
