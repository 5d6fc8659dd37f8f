"""One secret, and the keys derived from it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from agl_core.errors import ConfigError
from agl_core.serving import (
    ENV_KEY,
    AttemptKeys,
    bearer_of,
    equal_keys,
    given_key,
    shared_key,
    withheld_key,
)


def test_each_attempt_has_a_key_of_its_own():
    """F2: every process with the secret derives the same; two names never share a key."""
    keys = AttemptKeys("secret")
    one = keys.of("ro_1", "at_1")
    assert one == AttemptKeys("secret").of("ro_1", "at_1")
    others = {keys.of("ro_1", "at_2"), keys.of("ro_2", "at_1"), keys.of("ro_1a", "t_1")}
    strange = AttemptKeys("other").of("ro_1", "at_1")
    assert len({one, keys.client, strange, *others}) == 6
    assert keys.opens(one, "ro_1", "at_1")
    assert not any(keys.opens(key, "ro_1", "at_1") for key in (*others, keys.client, strange, ""))
    assert all(keys.belongs(key) for key in (one, keys.client, *others))
    assert not any(keys.belongs(key) for key in ("", "secret", "agl-", strange))
    assert keys.opens(keys.of("\ud83d", "é"), "\ud83d", "é")


def test_the_secret_stays_out_of_the_environment(monkeypatch):
    """F2: neither this process's agents nor their children have it; afterwards it is back."""
    monkeypatch.setenv(ENV_KEY, "s")
    child = [sys.executable, "-c", f"import os; print(os.environ.get({ENV_KEY!r}))"]
    with withheld_key():
        assert ENV_KEY not in os.environ
        assert subprocess.run(child, capture_output=True, text=True, check=True).stdout == "None\n"
        with withheld_key():
            assert shared_key() == "s"
        assert shared_key() == "s"
        assert ENV_KEY not in os.environ
    assert os.environ[ENV_KEY] == "s"
    monkeypatch.delenv(ENV_KEY)
    assert given_key() == ""
    with withheld_key("given"):
        assert shared_key() == "given"
    assert ENV_KEY not in os.environ
    with withheld_key(), pytest.raises(ConfigError, match="AGL_API_KEY is not set"):
        shared_key()


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_the_secret_is_blanked_where_other_processes_read_it():
    """F2: an agent reads the environment that its process was started with, and its parent's."""
    program = """
import os, pathlib, subprocess, sys
from agl_core.serving import shared_key, withheld_key
with withheld_key():
    assert shared_key() == "operators"
    code = "import os, sys; sys.stdout.buffer.write(open(f'/proc/{os.getppid()}/environ', 'rb').read())"
    parents = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    own = pathlib.Path("/proc/self/environ").read_bytes()
    assert b"AGL_API_KEY=" in own
    assert b"operators" not in own + parents
assert os.environ["AGL_API_KEY"] == "operators"
"""
    environment = {**os.environ, ENV_KEY: "operators"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_blocks_that_overlap_restore_it_when_the_last_is_left(monkeypatch):
    monkeypatch.setenv(ENV_KEY, "s")
    one, two = withheld_key(), withheld_key()
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    assert ENV_KEY not in os.environ
    assert shared_key() == "s"
    two.__exit__(None, None, None)
    assert os.environ[ENV_KEY] == "s"


@pytest.mark.parametrize(
    ("header", "token"),
    [
        (b"Bearer k", "k"),
        (b"bearer k", "k"),
        (b"BEARER  k ", "k"),
        (b"Basic k", ""),
        (b"Bearer", ""),
        (b"", ""),
        (b"Bearer \xc3\xbc", "ü"),
        (b"Bearer \xff", "\udcff"),
    ],
)
def test_bearer_tokens_are_read_whatever_the_case_of_the_scheme(header, token):
    assert bearer_of([(b"authorization", header)]) == token
    assert bearer_of([]) == ""


def test_a_key_may_come_as_x_api_key():
    """What Anthropic's clients send; a bearer token is preferred, and the first of two."""
    key, bearer = (b"x-api-key", b"k"), (b"authorization", b"Bearer b")
    assert bearer_of([key]) == "k"
    assert bearer_of([key, (b"x-api-key", b"other")]) == "k"
    assert bearer_of([key, bearer]) == bearer_of([bearer, key]) == "b"
    assert bearer_of([key, (b"authorization", b"Basic b")]) == "k"


def test_an_empty_key_opens_nothing():
    assert equal_keys("k", "k")
    assert not equal_keys("", "")
    assert not equal_keys("ÿ", "k")


@pytest.mark.parametrize("key", ["schlüssel", "\udcff"])
def test_a_key_that_is_not_ascii_opens(key):
    """F2: the bytes of header and environment variable are compared."""
    header = b"Bearer " + key.encode(errors="surrogateescape")
    assert equal_keys(bearer_of([(b"authorization", header)]), key)
    assert AttemptKeys(key).belongs(AttemptKeys(key).client)
