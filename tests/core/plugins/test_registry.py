import pytest
from pydantic import BaseModel

from agl_core.errors import ConfigError, MissingExtraError, PluginConflictError, PluginError
from agl_core.plugins import PluginManager, Registration, Registry


class Options(BaseModel):
    size: int = 1


def registry(*registrations, problems=None):
    made = Registry("engines", problems=problems or {})
    for registration in registrations:
        made.add(registration)
    return made


def offer(name="mine", target="json:loads", plugin="acme", **more):
    return Registration(name=name, target=target, plugin=plugin, **more)


def test_nothing_is_imported_before_it_is_chosen(shelf):
    (shelf.folder / "explosive.py").write_text("raise AssertionError('imported')")

    made = registry(offer(target="explosive:x"))

    assert made.names() == ["mine"]
    with pytest.raises(PluginError, match=r"'acme'.*explosive:x.*imported"):
        made.resolve("mine")


def test_an_unknown_name_lists_the_known_ones_and_the_nearest():
    made = registry(offer("torch"), offer("http"))

    with pytest.raises(ConfigError) as caught:
        made.resolve("torhc")

    assert str(caught.value) == (
        "Unknown engine 'torhc'; did you mean 'torch'?; known: http, torch"
    )
    assert "torhc" not in made
    assert "torch" in made


@pytest.mark.parametrize(("kind", "noun"), [("losses", "loss"), ("stores", "store")])
def test_every_kind_is_told_in_the_singular(kind, noun):
    with pytest.raises(ConfigError, match=f"^Unknown {noun} 'x'"):
        Registry(kind, problems={}).get("x")


def test_a_built_in_name_cannot_be_claimed():
    with pytest.raises(PluginConflictError, match="AGL_DISABLE_PLUGINS=acme"):
        registry(offer("http", plugin="builtin"), offer("http"))


def test_a_missing_attribute_names_plugin_and_target():
    with pytest.raises(PluginError, match=r"'acme'.*'json:absent'"):
        registry(offer(target="json:absent")).resolve("mine")


def test_nested_attributes_resolve():
    found = registry(offer(target="json:JSONDecoder.decode")).resolve("mine")

    assert found.__qualname__ == "JSONDecoder.decode"


def test_options_models_are_given_as_class_or_string():
    made = registry(
        offer("a", config=Options), offer("b", config=f"{__name__}:Options"), offer("c")
    )

    assert made.options_model("a") is Options
    assert made.options_model("c") is None
    with pytest.raises(PluginError):
        registry(offer("d", config="json:Absent")).options_model("d")


@pytest.fixture
def core_metadata(shelf):
    """An agl-core whose extras ask for frameworks that do not exist."""
    shelf.install(
        "agl-core",
        "9.0",
        requires=[
            "pluggy",
            "quantum-agents<3,>=2.1; extra == 'quantum'",
            "qubits>=1; extra == 'quantum'",
            "agl-core[quantum]; extra == 'lab'",
            "telescope>=4; extra == 'lab'",
            "pluggy>=900; extra == 'future'",
            "wings; sys_platform == 'amiga' and extra == 'future'",
        ],
    )
    return shelf


def test_a_missing_framework_names_requirement_and_pip_line(core_metadata):
    (core_metadata.folder / "q_plugin.py").write_text("import quantum_agents")
    made = registry(offer("quantum", "q_plugin:Engine", extra="quantum"))

    with pytest.raises(MissingExtraError) as caught:
        made.create("quantum")

    assert isinstance(caught.value, ImportError)
    assert str(caught.value) == (
        "Plugin 'quantum' needs quantum-agents>=2.1,<3: pip install 'agl-core[quantum]'"
    )


def test_a_framework_imported_only_when_the_factory_runs_counts_too(core_metadata):
    (core_metadata.folder / "q_late.py").write_text("def make():\n    import qubits.core")
    made = registry(offer("quantum", "q_late:make", extra="quantum"))

    with pytest.raises(MissingExtraError, match="needs qubits>=1"):
        made.create("quantum")


def test_extras_that_include_extras_are_followed(core_metadata):
    (core_metadata.folder / "lab.py").write_text("import telescope_optics")
    made = registry(offer("lab", "lab:Engine", extra="lab"))

    with pytest.raises(MissingExtraError) as caught:
        made.resolve("lab")

    for needed in ("telescope>=4", "quantum-agents>=2.1,<3", "qubits>=1", "agl-core[lab]"):
        assert needed in str(caught.value)


def test_a_version_outside_the_range_is_missing_too(core_metadata):
    (core_metadata.folder / "future.py").write_text("from pluggy import NothingOfThisName")
    made = registry(offer("future", "future:x", extra="future"))

    with pytest.raises(MissingExtraError, match=r"pluggy>=900: pip install 'agl-core\[future\]'"):
        made.resolve("future")


def test_a_third_party_names_its_own_requirement(shelf):
    shelf.install(
        "acme-agents", requires=["acme-runtime>=3"], modules={"acme_engine": "import acme_runtime"}
    )
    made = registry(offer("acme", "acme_engine:Engine", distribution="acme-agents"))

    with pytest.raises(MissingExtraError, match="pip install 'acme-runtime>=3'"):
        made.resolve("acme")


def test_a_local_plugin_names_the_module(shelf):
    (shelf.folder / "local_engine.py").write_text("import never_installed.deep")

    with pytest.raises(MissingExtraError, match="needs never_installed"):
        registry(offer(target="local_engine:x")).resolve("mine")


def test_a_target_that_does_not_exist_is_a_broken_plugin_not_a_missing_extra():
    with pytest.raises(PluginError, match="nosuchpackage") as caught:
        registry(offer(target="nosuchpackage.module:x")).resolve("mine")
    assert not isinstance(caught.value, MissingExtraError)


def test_an_import_error_inside_an_installed_framework_is_a_broken_plugin(shelf):
    (shelf.folder / "moved.py").write_text("from json import was_moved")

    with pytest.raises(PluginError, match="was_moved") as caught:
        registry(offer(target="moved:x")).resolve("mine")
    assert not isinstance(caught.value, MissingExtraError)


def test_factories_raise_what_they_raise(shelf):
    (shelf.folder / "picky.py").write_text(
        "from agl_core.errors import ConfigError\ndef make(size): raise ConfigError(f'size {size}')"
    )

    with pytest.raises(ConfigError, match="size 3"):
        registry(offer(target="picky:make")).create("mine", 3)


def test_the_listing_shows_what_an_extra_lacks(core_metadata, tmp_path):
    file = tmp_path / "lister.py"
    file.write_text(
        "from agl_core.plugins import hookimpl\n"
        "@hookimpl\n"
        "def agl_register_engines(register): register('q', 'a:b', extra='quantum')\n",
        encoding="utf-8",
    )
    plugins = PluginManager(environ={})
    plugins.load_file(file)

    (row,) = plugins.plugins()

    assert row.state == "missing extra"
    assert row.detail == (
        "q needs quantum-agents>=2.1,<3, qubits>=1: pip install 'agl-core[quantum]'"
    )
