import pytest

from agl_core import _builtin as builtin
from agl_core._builtin import load_plugins
from agl_core.config import StoreConfig
from agl_core.store import store_options


def test_plugins_are_listed_with_version_and_state(agl, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from agl_core.plugins import hookimpl\n"
        "@hookimpl\n"
        "def agl_register_rewards(register): register('mine_reward', 'a:b')\n"
        "@hookimpl\n"
        "def agl_run_finished(report): ...\n",
        encoding="utf-8",
    )
    (tmp_path / "bad.py").write_text("raise ValueError('no luck')", encoding="utf-8")

    result = agl("plugins", "--plugin", "bad.py", "--plugin", "mine.py")

    assert result.exit_code == 0, result.stderr
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    assert "agl-core" in lines["builtin"]
    assert " ok " in lines["builtin"]
    assert "local file" in lines["mine"]
    assert "rewards: mine_reward" in lines["mine"]
    assert "observes: agl_run_finished" in result.stdout
    assert "broken" in lines["bad"]
    assert "disabled" in lines["torch"]
    assert "Plugin 'bad' is broken: ValueError: no luck" in result.stdout
    assert "Traceback" not in result.stdout


def test_tracebacks_are_shown_when_asked_for(agl, tmp_path):
    (tmp_path / "bad.py").write_text("raise ValueError('no luck')", encoding="utf-8")

    result = agl("plugins", "-v", "--plugin", "bad.py")

    assert "Traceback" in result.stdout
    assert "raise ValueError('no luck')" in result.stdout


@pytest.fixture(scope="module")
def plugins():
    return load_plugins()


@pytest.mark.parametrize("kind", ["stores", "algorithms", "commands"])
def test_every_built_in_can_be_imported_with_its_options(plugins, kind):
    registry = plugins.registry(kind)
    own = registry.registrations("builtin")

    assert own
    for entry in own:
        assert callable(registry.resolve(entry.name))
        assert entry.summary
        if entry.config is not None:
            assert registry.options_model(entry.name).model_fields is not None


async def test_built_in_stores_are_made_from_their_section(plugins, tmp_path):
    stores = plugins.registry("stores")
    for given in ({"name": "sqlite"}, {"name": "memory"}, {"path": str(tmp_path / "x.db")}):
        config = StoreConfig.model_validate(given)
        store = stores.create(config.name, store_options(config, plugins), tmp_path)
        await store.open()
        await store.close()

    assert (tmp_path / "store.db").is_file()
    assert (tmp_path / "x.db").is_file()


def test_the_built_in_plugin_is_the_module():
    assert builtin.agl_register_stores.agl_core_impl
