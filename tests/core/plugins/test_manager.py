import logging

import pytest

from agl_core.errors import ConfigError, PluginConflictError, PluginError
from agl_core.plugins import PluginManager
from agl_core.types import Losses

GOOD = """
    from agl_core.plugins import hookimpl

    seen = []

    @hookimpl
    def agl_register_rewards(register):
        register("{name}_reward", "{name}_impl:make", summary="a reward")

    @hookimpl
    def agl_run_finished(report):
        seen.append(report)
"""


def good(name):
    return GOOD.replace("{name}", name)


def manager(environ=None):
    made = PluginManager(environ=environ or {})
    made.load_installed()
    return made


def info(manager, name):
    return next(row for row in manager.plugins() if row.name == name)


def test_an_installed_distribution_registers_and_is_listed_with_its_version(shelf):
    shelf.install(
        "acme-agents",
        "2.5",
        modules={
            "acme": good("acme"),
            "acme_impl": "def make(**options): return ('made', options)",
        },
        entry_points={"acme": "acme"},
    )

    plugins = manager()

    row = info(plugins, "acme")
    assert (row.state, row.distribution, row.version) == ("ok", "acme-agents", "2.5")
    assert row.registers == {"rewards": ("acme_reward",)}
    assert row.observes == ("agl_run_finished",)
    assert plugins.registry("rewards").create("acme_reward", a=1) == ("made", {"a": 1})


def test_a_class_or_an_instance_may_be_the_plugin(shelf):
    source = """
        from agl_core.plugins import hookimpl

        class Plugin:
            @hookimpl
            def agl_register_metrics(self, register):
                register(type(self).__name__, "objects:Plugin")

        class Second(Plugin):
            pass

        instance = Second()
    """
    shelf.install(
        "objects",
        modules={"objects": source},
        entry_points={"by_class": "objects:Plugin", "by_instance": "objects:instance"},
    )

    assert manager().registry("metrics").names() == ["Plugin", "Second"]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise ValueError('no luck')", "ValueError: no luck"),
        ("import nowhere_to_be_found", "ModuleNotFoundError"),
        ("def broken(:", "SyntaxError"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        (
            """
            from agl_core.plugins import hookimpl
            @hookimpl
            def agl_register_stores(register):
                register("half", "x:y")
                raise RuntimeError("midway")
            """,
            "RuntimeError: midway",
        ),
        (
            """
            from agl_core.plugins import hookimpl
            @hookimpl
            def agl_register_stores(register):
                raise SystemExit(4)
            """,
            "SystemExit: 4",
        ),
        (
            """
            from agl_core.plugins import hookimpl
            @hookimpl
            def agl_run_finishd(report): ...
            """,
            "did you mean 'agl_run_finished'",
        ),
        (
            """
            from agl_core.plugins import hookimpl
            @hookimpl
            def agl_run_finished(report, colour): ...
            """,
            "colour",
        ),
        (
            """
            from agl_core.plugins import hookimpl
            @hookimpl
            async def agl_run_finished(report): ...
            """,
            "plain function",
        ),
        (
            """
            from agl_core.plugins import hookimpl
            @hookimpl(wrapper=True)
            def agl_run_finished(report): yield
            """,
            "wrapper",
        ),
        (
            """
            from agl_core.plugins import hookimpl
            @hookimpl
            def agl_register_stores(register):
                register("colonless", "module.attribute")
            """,
            "module:attribute",
        ),
        (
            """
            from agl_core.plugins import hookimpl
            @hookimpl
            def agl_register_stores(register):
                register("twice", "a:b")
                register("twice", "c:d")
            """,
            "registered twice",
        ),
    ],
)
def test_a_broken_plugin_is_recorded_and_never_breaks_the_others(shelf, source, reason):
    shelf.install("aaa-bad", modules={"aaa_bad": source}, entry_points={"aaa": "aaa_bad"})
    shelf.install("zzz-good", modules={"zzz": good("zzz")}, entry_points={"zzz": "zzz"})

    plugins = manager()

    assert info(plugins, "zzz").state == "ok"
    row = info(plugins, "aaa")
    assert row.state == "broken"
    assert reason in row.detail
    assert "Traceback" in row.traceback
    plugins.observe("agl_run_finished", report=None)
    assert "half" not in plugins.registry("stores")


def test_choosing_something_of_a_broken_plugin_raises_with_its_cause(shelf):
    source = """
        from agl_core.plugins import hookimpl
        @hookimpl
        def agl_register_stores(register):
            register("half", "x:y")
            raise RuntimeError("midway")
    """
    shelf.install("bad", modules={"bad_module": source}, entry_points={"bad": "bad_module"})
    stores = manager().registry("stores")

    for chosen in ("half", "bad"):
        with pytest.raises(PluginError, match="midway") as caught:
            stores.resolve(chosen)
        assert isinstance(caught.value.__cause__.__cause__, RuntimeError)
    with pytest.raises(ConfigError, match="broken plugins: bad"):
        stores.resolve("other")


def test_disabled_plugins_are_listed_and_not_imported(shelf, caplog):
    shelf.install("loud", modules={"loud": "raise SystemExit"}, entry_points={"loud": "loud"})

    with caplog.at_level(logging.WARNING, "agl_core"):
        plugins = manager({"AGL_DISABLE_PLUGINS": "loud, unheard"})

    assert info(plugins, "loud").state == "disabled"
    assert "'unheard'" in caplog.text


def test_two_distributions_with_one_plugin_name_are_both_out_whichever_comes_first(shelf):
    shelf.install("one", modules={"one": good("one")}, entry_points={"same": "one"})
    shelf.install("two", modules={"two": good("two")}, entry_points={"same": "two"})

    row = info(manager(), "same")

    assert row.state == "broken"
    assert "'one', 'two'" in row.detail
    assert row.registers == {}


def test_a_name_offered_twice_raises_only_when_chosen(shelf):
    for name in ("one", "two"):
        source = f"""
            from agl_core.plugins import hookimpl
            @hookimpl
            def agl_register_stores(register):
                register("shared", "{name}_impl:make")
                register("{name}_own", "{name}_impl:make")
        """
        shelf.install(
            name,
            modules={name: source, f"{name}_impl": f"def make(): return '{name}'"},
            entry_points={name: name},
        )
    stores = manager().registry("stores")

    assert stores.create("one_own") == "one"
    assert stores.create("two_own") == "two"
    with pytest.raises(PluginConflictError, match=r"'shared'.*AGL_DISABLE_PLUGINS=one"):
        stores.create("shared")


def test_a_local_file_is_a_plugin(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from agl_core.plugins import hookimpl\n"
        "@hookimpl\n"
        "def agl_register_rewards(register): register('mine', 'json:loads')\n",
        encoding="utf-8",
    )
    plugins = PluginManager(environ={})

    plugins.load_file(file)

    assert plugins.registry("rewards").resolve("mine")("1") == 1
    assert [row.name for row in plugins.plugins()] == ["mine"]


def test_a_local_file_that_is_broken_or_absent_raises_at_once_and_is_still_listed(tmp_path):
    (tmp_path / "bad.py").write_text("1 / 0", encoding="utf-8")
    plugins = PluginManager(environ={})

    with pytest.raises(PluginError, match="ZeroDivisionError"):
        plugins.load_file(tmp_path / "bad.py")
    with pytest.raises(PluginError, match=r"there is no file .*absent\.py"):
        plugins.load_file(tmp_path / "absent.py")
    assert {row.name: row.state for row in plugins.plugins()} == {
        "bad": "broken",
        "absent": "broken",
    }


def test_two_local_files_of_one_name_conflict(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.py").write_text("", encoding="utf-8")
    plugins = PluginManager(environ={})
    plugins.load_file(tmp_path / "a" / "same.py")

    with pytest.raises(PluginConflictError, match="'same'"):
        plugins.load_file(tmp_path / "b" / "same.py")


def test_observers_run_in_load_order_with_the_arguments_they_name(shelf):
    for name in ("b_second", "a_first"):
        source = f"""
            import calls
            from agl_core.plugins import hookimpl
            @hookimpl
            def agl_update_applied(step): calls.seen.append(("{name}", step))
        """
        shelf.install(name, modules={name: source}, entry_points={name: name})
    (shelf.folder / "calls.py").write_text("seen = []", encoding="utf-8")
    plugins = manager()

    plugins.observe("agl_update_applied", update=None, step=3, losses=Losses())

    import calls

    assert calls.seen == [("a_first", 3), ("b_second", 3)]


def test_a_raising_observer_is_named(tmp_path):
    file = tmp_path / "watcher.py"
    file.write_text(
        "from agl_core.plugins import hookimpl\n"
        "@hookimpl\n"
        "def agl_run_finished(report): raise KeyError(report)\n",
        encoding="utf-8",
    )
    plugins = PluginManager(environ={})
    plugins.load_file(file)

    with pytest.raises(PluginError, match="'watcher' raised in agl_run_finished") as caught:
        plugins.observe("agl_run_finished", report="r")
    assert isinstance(caught.value.__cause__, KeyError)


def test_registering_after_loading_is_refused(tmp_path):
    file = tmp_path / "hoarder.py"
    file.write_text(
        "from agl_core.plugins import hookimpl\n"
        "kept = []\n"
        "@hookimpl\n"
        "def agl_register_rewards(register): kept.append(register)\n"
        "@hookimpl\n"
        "def agl_run_finished(report): kept[0]('late', 'a:b')\n",
        encoding="utf-8",
    )
    plugins = PluginManager(environ={})
    plugins.load_file(file)

    with pytest.raises(PluginError, match="'late' was registered after loading"):
        plugins.observe("agl_run_finished", report=None)


def test_managers_share_nothing(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("", encoding="utf-8")
    first, second = PluginManager(environ={}), PluginManager(environ={})

    first.load_file(file)

    assert second.plugins() == []
