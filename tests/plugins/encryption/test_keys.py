"""Where keys come from, and what is wrong with them."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from agl_encryption import EncryptionOptions
from agl_encryption._keys import id_of, load_keys, new_key

from agl_core.config import validate
from agl_core.errors import ConfigError
from tests.plugins.encryption.keyring import NEW, OLD

TEXT = {key: base64.b64encode(key).decode() for key in (OLD, NEW)}


def test_a_key_alone_has_an_id_of_its_own(monkeypatch) -> None:
    for text in (TEXT[OLD], f" {TEXT[OLD]}\n", OLD.hex(), OLD.hex().upper(), TEXT[OLD].rstrip("=")):
        monkeypatch.setenv("AGL_ENCRYPTION_KEY", text)
        keys = load_keys(None)
        assert keys is not None
        assert (keys.active, keys.get(id_of(OLD))) == (id_of(OLD), OLD)
    assert id_of(OLD) != id_of(NEW)


def test_the_first_of_several_keys_is_active(monkeypatch) -> None:
    monkeypatch.setenv("AGL_ENCRYPTION_KEYS", f"2027:{TEXT[NEW]}, 2026 = {TEXT[OLD]},")
    keys = load_keys(None)
    assert keys is not None
    assert (keys.ids, keys.active) == (["2027", "2026"], "2027")
    monkeypatch.setenv("AGL_ENCRYPTION_ACTIVE", "2026")
    named = load_keys(None)
    assert named is not None
    assert named.active == "2026"
    monkeypatch.setenv("AGL_ENCRYPTION_ACTIVE", "2025")
    with pytest.raises(ConfigError, match=r"active encryption key '2025' is not among"):
        load_keys(None)


def test_keys_come_from_a_file_and_from_a_function(tmp_path: Path, monkeypatch) -> None:
    file, code = tmp_path / "keys", tmp_path / "kms.py"
    file.write_text(f"# of this year\na = {TEXT[OLD]}\n\nb:{NEW.hex()}\n")
    code.write_text(f"def fetch():\n    return {{'c': {NEW!r}, 'd': {TEXT[OLD]!r}}}\n")
    options = EncryptionOptions(keys_file=str(file), provider=f"{code}:fetch", active="c")
    keys = load_keys(options)
    assert keys is not None
    assert (keys.ids, keys.active) == (["a", "b", "c", "d"], "c")
    assert [keys.get(name) for name in "abcd"] == [OLD, NEW, NEW, OLD]
    monkeypatch.setenv("AGL_ENCRYPTION_KEYS_FILE", str(file))
    monkeypatch.setenv("AGL_ENCRYPTION_PROVIDER", f"{code}:fetch")
    again = load_keys(None)
    assert again is not None
    assert (again.ids, again.active) == (["a", "b", "c", "d"], "a")
    file.write_text(TEXT[OLD])
    alone = load_keys(None)
    assert alone is not None
    assert alone.active == id_of(OLD)


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"KEY": "short"}, "AGL_ENCRYPTION_KEY: an encryption key is 32 bytes"),
        ({"KEY": "no key at all"}, "AGL_ENCRYPTION_KEY: an encryption key is 32 bytes"),
        (
            {"KEY": base64.b64encode(b"x" * 31).decode()},
            "but has 31: make one with `agl store key`",
        ),
        ({"KEYS": TEXT[OLD].rstrip("=")}, "AGL_ENCRYPTION_KEYS: an encryption key has no id"),
        ({"KEYS": f"a b:{TEXT[OLD]}"}, "the id of an encryption key has 3 characters"),
        ({"KEYS": f"{'a' * 65}:{TEXT[OLD]}"}, "at most 64"),
        ({"KEYS": f":{TEXT[OLD]}"}, "the id of an encryption key has 0 characters"),
        ({"KEYS": "a:"}, "an encryption key is 32 bytes"),
        ({"KEYS": f"a:{TEXT[OLD]},a:{TEXT[NEW]}"}, "the encryption key 'a' differs from another"),
        ({"ACTIVE": "a"}, "There is no encryption key"),
        ({"KEYS_FILE": "/nowhere/keys"}, "keys in '/nowhere/keys' cannot be read"),
        ({"PROVIDER": "agl_core:nothing"}, "has no attribute 'nothing'"),
        ({"PROVIDER": "os:getcwd"}, "os:getcwd: an encryption key is 32 bytes"),
        ({"PROVIDER": "os:getpid"}, "returned no keys: return them by their ids"),
        ({"PROVIDER": "os:abc"}, "gave no encryption keys: TypeError: 'module' object"),
        ({"PROVIDER": "os:rmdir"}, "gave no encryption keys: TypeError"),
    ],
)
def test_what_is_wrong_is_said_without_a_key(monkeypatch, variables, says) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"AGL_ENCRYPTION_{name}", value)
    with pytest.raises(ConfigError, match=says) as caught:
        load_keys(None)
    for text in (*TEXT.values(), OLD.decode()):
        assert text not in str(caught.value)
        assert text.rstrip("=") not in str(caught.value)


def test_an_empty_file_of_keys_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# none\n")
    with pytest.raises(ConfigError, match="has no encryption key"):
        load_keys(EncryptionOptions(keys_file=str(file)))


def test_new_keys_are_random_and_valid(monkeypatch) -> None:
    monkeypatch.setenv("AGL_ENCRYPTION_KEYS", f"a:{new_key()},b:{new_key()}")
    keys = load_keys(None)
    assert keys is not None
    assert keys.get("a") != keys.get("b")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fields": []}, "names nothing to encrypt"),
        ({"fields": ["message"]}, r"encryption\.fields"),
        ({"key": "x"}, r"unknown key 'encryption\.key'"),
    ],
)
def test_options_are_validated(options, says) -> None:
    with pytest.raises(ConfigError, match=says):
        validate(EncryptionOptions, options, where="encryption")
