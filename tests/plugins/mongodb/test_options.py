"""Addresses, names of databases, and what commands say of a server that is not there."""

import pytest
from agl_mongodb import MongoOptions, MongoStore
from agl_mongodb._connect import MongoServer
from pydantic import ValidationError

from agl_core._builtin import load_plugins
from agl_core.config import StoreConfig
from agl_core.errors import ConfigError, StoreError
from agl_core.store import store_options


def test_the_database_is_that_of_the_address_the_options_or_the_environment(monkeypatch):
    monkeypatch.setenv("MONGODB_DATABASE", "third")
    assert MongoOptions(url="mongodb://h/first", database="second").database_name == "first"
    assert MongoOptions(url="mongodb://h/?w=1", database="second").database_name == "second"
    assert MongoOptions(url="mongodb://u:p@a:1,b:2").database_name == "third"
    assert MongoOptions(url="mongodb+srv://u:p@h.net/with-dash?tls=true").database_name == (
        "with-dash"
    )


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "needs url"),
        ("postgresql://h/db", "begins with mongodb://"),
        ("mongodb:///db", "begins with mongodb://"),
        ("mongodb://h", "no database is named"),
        ("mongodb://h/a.b", "no name of a database"),
        ("mongodb://h/" + "x" * 64, "no name of a database"),
        ("mongodb://u:p/w@h/db", "write it as %2F"),
        ("mongodb://h/d\0b", "NUL"),
    ],
)
def test_wrong_addresses_are_refused(url, said, monkeypatch):
    monkeypatch.delenv("MONGODB_DATABASE", raising=False)
    with pytest.raises(ValidationError, match=said):
        MongoOptions(url=url)
    with pytest.raises(ConfigError, match=said):
        store_options(StoreConfig.model_validate({"name": "mongodb", "url": url}), load_plugins())


def test_a_password_of_a_key_file_is_not_shown():
    with pytest.raises(ConfigError, match="key file") as refused:
        MongoOptions(url="mongodb://h/db?tls=true&tlsCertificateKeyFilePassword=sesame")
    assert "sesame" not in str(refused.value)


def test_what_the_address_gives_is_not_set_again():
    options = MongoOptions(url="mongodb://h/db?maxPoolSize=7&W=1", retry_s=2.5)
    settings = MongoServer.of(options)._settings()
    assert "maxPoolSize" not in settings
    assert "w" not in settings
    assert settings["serverSelectionTimeoutMS"] == 2500


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("127.0.0.1:{port}/db", "cannot be reached .*check the address"),
        ("127.0.0.1:99999/db", "is not an address"),
        (
            "127.0.0.1/db?tls=true&tlsInsecure=true&tlsAllowInvalidHostnames=true",
            "is not an address",
        ),
        ("127.0.0.1/db?authSource=", "is not an address"),
    ],
)
async def test_a_wrong_address_is_one_line(place, said, free_port):
    url = f"mongodb://user:sesame@{place.format(port=free_port)}"
    store = MongoStore(MongoOptions(url=url, retry_s=0.1))
    with pytest.raises(StoreError, match=said) as refused:
        await store.open()
    assert "sesame" not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.__cause__ is None
