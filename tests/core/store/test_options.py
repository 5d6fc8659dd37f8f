"""What a section says about a store, and which store an address means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agl_stores import StoreAddress, locate_store, store_at
from pydantic import BaseModel, SecretBytes, SecretStr

from agl_core._builtin import load_plugins
from agl_core.app.parts import check_apart, with_store, with_store_apart
from agl_core.config import RunConfig, StoreConfig
from agl_core.config.loader import load_config, resolve, save_config
from agl_core.errors import ConfigError
from agl_core.plugins import PluginManager, hookimpl
from agl_core.plugins._manager import Source
from agl_core.store import described, store_of, store_options
from agl_core.store.options import StoreOptions


class ServerOptions(StoreOptions):
    """Of a store that a plugin brings."""

    schemes = ("keeper",)

    url: str
    pool: int = 4


class PlainOptions(BaseModel):
    """Options that derive from no class of ours."""

    topic: str = ""
    url: str | None = None


class Plugin:
    """Offers two stores."""

    @hookimpl
    def agl_register_stores(self, register: Any) -> None:
        register("server", f"{__name__}:make_nothing", config=ServerOptions)
        register("plain", f"{__name__}:make_nothing", config=PlainOptions)
        register("bare", f"{__name__}:make_nothing")


def make_nothing(options: Any, directory: Path) -> Any:
    return options, directory


@pytest.fixture
def plugins() -> PluginManager:
    manager = load_plugins()
    manager.register(Plugin(), Source(name="mine"))
    return manager


def options_of(plugins: PluginManager, **store: Any) -> Any:
    return store_options(resolve({"store": store}).store, plugins)


def refused(plugins: PluginManager, **store: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        options_of(plugins, **store)
    return str(caught.value)


@pytest.mark.parametrize(
    ("store", "reason"),
    [
        ({"pth": "a.db"}, "unknown key 'store.pth': did you mean 'store.path'?"),
        ({"synchronous": "half"}, "store.synchronous = 'half'"),
        ({"busy_timeout_s": 0}, "store.busy_timeout_s = 0"),
        ({"name": "memory", "path": "a.db"}, "unknown key 'store.path'"),
        ({"name": "http"}, "the store 'http' needs url, which agl store serve prints"),
        ({"name": "http", "url": "http://h:1", "path": "a.db"}, "unknown key 'store.path'"),
        ({"name": "http", "url": "http://h:1", "retention": "keep"}, "'store.retention'"),
        ({"url": "http://h:1"}, "the store 'sqlite' has no url; name = 'http' takes this address"),
        ({"url": "http://me:pw@h:1"}, "store.url = 'http://***@h:1'"),
        ({"name": "memory", "url": "keeper://h"}, "name = 'server' takes this address"),
        ({"name": "server", "url": "keeper://h", "pol": 1}, "did you mean 'store.pool'?"),
        ({"name": "bare", "depth": 1}, "unknown key 'store.depth'"),
        ({"pth": None}, "unknown key 'store.pth': did you mean 'store.path'?"),
        ({"name": "bare", "depth": None}, "unknown key 'store.depth'"),
        ({"path": 1e3}, "store.path = 1000.0: 1000.0 is a number: quote the name of the file"),
        ({"path": True}, "store.path = True"),
        ({"name": "server", "url": 5}, "store.url = 5"),
    ],
)
def test_options_are_those_of_the_store(
    plugins: PluginManager, store: dict[str, Any], reason: str
) -> None:
    assert reason in refused(plugins, **store)


def test_options_reach_the_factory_of_a_plugin(plugins: PluginManager, tmp_path: Path) -> None:
    options = options_of(plugins, name="server", url="keeper://h", pool="8")
    made = plugins.registry("stores").create("server", options, tmp_path)
    assert made == (ServerOptions(url="keeper://h", pool=8), tmp_path)


@pytest.mark.parametrize("name", ["plain", "bare"])
def test_options_of_another_base_have_the_defaults(plugins: PluginManager, name: str) -> None:
    about = described(options_of(plugins, name=name))
    assert (about.kept, about.shared, about.address) == (True, True, None)
    assert (about.file(Path()), about.apart()) == (None, None)


@pytest.mark.parametrize(
    ("store", "apart"),
    [
        ({"path": "a.db", "synchronous": "full"}, {"path": None, "synchronous": "full"}),
        ({"name": "memory", "retention": "drop_spans"}, {"retention": "drop_spans"}),
        ({"name": "http", "url": "http://h:1"}, {}),
        ({"name": "plain", "topic": "x"}, {}),
    ],
)
def test_evaluations_have_a_store_of_their_own(
    plugins: PluginManager, store: dict[str, Any], apart: dict[str, Any]
) -> None:
    config = with_store_apart(resolve({"store": store}), plugins)
    assert config.store.options == apart
    assert config.store.name == ("memory" if store.get("name") == "memory" else "sqlite")


@pytest.mark.parametrize(
    "store", [{"path": "all.db"}, {"name": "http", "url": "http://h:1"}, {"name": "bare"}]
)
def test_a_stored_section_means_the_same_from_any_folder(
    plugins: PluginManager,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    store: dict[str, Any],
) -> None:
    monkeypatch.chdir(tmp_path)
    config = with_store(resolve({"store": store}), plugins)
    file = save_config(config, tmp_path)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    stored = load_config(file).store
    assert stored == config.store
    assert stored.options.get("path") in (None, str(tmp_path / "all.db"))


def test_an_address_means_the_store_that_takes_its_scheme(plugins: PluginManager) -> None:
    for url, name in (
        ("http://h:1", "http"),
        ("HTTPS://h:1", "http"),
        ("keeper://h/runs", "server"),
    ):
        config = store_at(url, plugins)
        assert (config.name, config.options) == (name, {"url": url})
        address = locate_store(url, plugins)
        assert (address.url, address.named, address.file) == (url, True, None)


def test_an_address_that_no_store_takes_names_those_that_are(plugins: PluginManager) -> None:
    with pytest.raises(ConfigError, match="http://, https://, keeper://") as refused:
        locate_store("redis://me:pw@h", plugins)
    assert "pw" not in str(refused.value)


def test_an_address_that_two_stores_take_is_ambiguous(plugins: PluginManager) -> None:
    class Second:
        @hookimpl
        def agl_register_stores(self, register: Any) -> None:
            register("other", f"{__name__}:make_nothing", config=ServerOptions)

    plugins.register(Second(), Source(name="second"))
    with pytest.raises(ConfigError, match=r"\['other', 'server'\]"):
        store_at("keeper://h", plugins)


def test_a_broken_plugin_hides_no_other_store(plugins: PluginManager) -> None:
    class Broken:
        @hookimpl
        def agl_register_stores(self, register: Any) -> None:
            register("away", "nowhere:factory", config="nowhere:Options")

    plugins.register(Broken(), Source(name="broken"))
    assert store_at("http://h:1", plugins).name == "http"


def test_runners_share_no_store_of_one_process(plugins: PluginManager) -> None:
    url = {"gateway": {"url": "http://h:2"}}
    assert check_apart(resolve(url), plugins) == "http://h:2"
    assert check_apart(resolve({**url, "store": "plain"}), plugins) == "http://h:2"
    with pytest.raises(ConfigError, match="'memory' is open in one process only"):
        check_apart(resolve({**url, "store": "memory"}), plugins)


@pytest.mark.parametrize(
    "address",
    ["postgresql://user:secret@host/runs", "mysql://user:sec@ret@host", "redis://:secret@h:1/0"],
)
def test_a_file_is_no_database_server_and_the_password_is_not_shown(
    plugins: PluginManager, address: str
) -> None:
    """F3: names what takes such an address, without the password in it."""
    told = refused(plugins, path=address)
    assert "Configuration: store.path = " in told
    assert "takes it as url" in told
    assert "://***@h" in told
    assert "sec" not in told


@pytest.mark.parametrize("path", ["/runs/store.db", "C:/runs/store.db", "a:b.db", "./s.db"])
def test_paths_of_this_machine_are_taken(plugins: PluginManager, path: str) -> None:
    assert options_of(plugins, path=path).path == str(Path(path).absolute())


def test_a_path_may_look_like_a_number(plugins: PluginManager) -> None:
    config = resolve({}, ["store.path=2026", "store.synchronous=full"])
    options: Any = store_options(config.store, plugins)
    assert (options.path, options.synchronous) == (str(Path("2026").absolute()), "full")


@pytest.mark.parametrize("text", ["010", "0x10", "1_000", "+5", "0b1", "0o7", "'1e3'", '"1.0"'])
def test_a_path_is_the_text_that_is_given(plugins: PluginManager, text: str) -> None:
    options: Any = store_options(resolve({}, [f"store.path={text}"]).store, plugins)
    assert options.path == str(Path(text.strip("'\"")).absolute())


def test_a_path_that_reads_as_a_fraction_is_to_be_quoted(plugins: PluginManager) -> None:
    with pytest.raises(ConfigError, match=r"store\.path = 1000\.0: .* quote the name"):
        store_options(resolve({}, ["store.path=1e3"]).store, plugins)


@pytest.mark.parametrize(
    ("before", "name"),
    [({"name": "http", "url": "http://h:1"}, "sqlite"), ({"path": "a.db"}, "memory")],
)
def test_null_switches_off_an_option_that_only_another_store_has(
    plugins: PluginManager, before: dict[str, Any], name: str
) -> None:
    given = [f"store.{key}=null" for key in before if key != "name"]
    config = with_store(resolve({"store": before}, [f"store.name={name}", *given]), plugins)
    assert (config.store.name, config.store.options) == (name, {})


def test_null_reaches_a_store_that_takes_any_option(plugins: PluginManager) -> None:
    class Open(BaseModel, extra="allow"): ...

    class Taking:
        @hookimpl
        def agl_register_stores(self, register: Any) -> None:
            register("open", f"{__name__}:make_nothing", config=Open)

    plugins.register(Taking(), Source(name="taking"))
    assert options_of(plugins, name="open", url=None).model_extra == {"url": None}


class Login(BaseModel):
    password: SecretStr


class SecretOptions(StoreOptions):
    """With options that pydantic hides."""

    dsn: SecretStr
    logins: list[Login]
    pins: dict[str, SecretBytes]


def test_secrets_of_a_store_are_stored_with_the_run(tmp_path: Path) -> None:
    class Hiding:
        @hookimpl
        def agl_register_stores(self, register: Any) -> None:
            register("hiding", f"{__name__}:make_nothing", config=SecretOptions)

    plugins = load_plugins()
    plugins.register(Hiding(), Source(name="hiding"))
    options = {"dsn": "a", "logins": [{"password": "b"}], "pins": {"c": "d"}}
    config = with_store(resolve({"store": {"name": "hiding", **options}}), plugins)
    stored = load_config(save_config(config, tmp_path)).store
    assert stored.options == options
    assert store_options(stored, plugins) == SecretOptions.model_validate(options)


def test_a_path_holds_no_nul(plugins: PluginManager) -> None:
    assert "NUL" in refused(plugins, path="a\0b")


def test_a_section_without_options_is_a_default_store(plugins: PluginManager) -> None:
    config = with_store(RunConfig(), plugins)
    assert (config.store, config.store.options) == (StoreConfig(), {})


def test_an_address_that_only_a_runs_record_names_is_refused_for_options_of_any_base() -> None:
    options = PlainOptions(url="http://h:1")
    address = StoreAddress(
        config=StoreConfig(name="plain"), options=options, directory=Path("run"), named=False
    )
    with pytest.raises(ConfigError, match=r"keeps its records at http://h:1"):
        address.check_named()


def test_a_password_in_an_address_is_not_printed_with_the_command() -> None:
    options = ServerOptions(url="keeper://u:secret@h/d")
    address = StoreAddress(
        config=StoreConfig(name="server"), options=options, directory=Path("run"), named=False
    )
    with pytest.raises(ConfigError) as refused:
        address.check_named("agl store ls keeper://u:secret@h/d")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "sqlite"),
        ({"store": {"url": "keeper://h"}}, "server"),
        ({"store": {"url": "keeper://h", "name": "memory"}}, "memory"),
        ({"store": {"url": "nothing://h"}}, "sqlite"),
        ({"store": {"path": "x.db"}}, "sqlite"),
        ({"store": "memory"}, "memory"),
    ],
)
def test_an_address_alone_names_its_store(
    plugins: PluginManager, given: dict[str, Any], name: str
) -> None:
    assert store_of(resolve(given), plugins).name == name


def test_the_environment_has_the_store_of_runs_that_configure_none(
    plugins: PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGL_STORE_URL", "keeper://user:secret@h")
    section = store_of(resolve({}), plugins)
    assert (section.name, section.options) == ("server", {"url": "keeper://user:secret@h"})
    assert store_of(resolve({"store": {"synchronous": "full"}}), plugins).name == "sqlite"
    monkeypatch.setenv("AGL_STORE_URL", "")
    assert store_of(resolve({}), plugins).name == "sqlite"


@pytest.mark.parametrize("url", ["nothing://user:secret@h", "runs/store.db"])
def test_an_address_in_the_environment_that_no_store_takes_is_named(
    plugins: PluginManager, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("AGL_STORE_URL", url)
    with pytest.raises(ConfigError, match=r"AGL_STORE_URL is .*, which no store takes") as refused:
        store_of(resolve({}), plugins)
    assert "keeper://" in str(refused.value)
    assert "secret" not in str(refused.value)
