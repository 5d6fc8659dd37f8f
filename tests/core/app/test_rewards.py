import pytest
from agl_testing.attempts import ScriptedAttempt

from agl_core._builtin import load_plugins
from agl_core.app.parts import build_rewards
from agl_core.config import RewardConfig
from agl_core.errors import ConfigError, PluginError
from agl_core.types import Task


@pytest.fixture(scope="module")
def registry():
    return load_plugins().registry("rewards")


def build(registry, *sections):
    return build_rewards([RewardConfig.model_validate(section) for section in sections], registry)


def score(reward, output, expected=None):
    return reward.function(Task(id="t", expected=expected), output, ScriptedAttempt().record())


def test_built_in_rewards_are_registered_and_take_their_options(registry):
    exact, numeric, regex, schema = build(
        registry,
        {"name": "exact_match", "ignore_case": True},
        {"name": "numeric", "abs_tol": "0.5", "channel": "close"},
        {"name": "regex", "pattern": "x"},
        {"name": "json_schema", "schema": {"type": "object"}},
    )

    assert score(exact, "A", "a") == 1
    assert (score(numeric, "1.4", 1), numeric.channel) == (1, "close")
    assert score(regex, "axb") == 1
    assert score(schema, "{}") == 1


def test_references_are_functions_of_the_user(registry, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def score(task, output, attempt): return 0.25", encoding="utf-8")

    (mine,) = build(registry, {"name": f"{file}:score", "channel": "own"})

    assert (mine.name, mine.channel, score(mine, None)) == ("score", "own", 0.25)


def test_equal_names_are_distinguished(registry):
    sections = [{"name": "exact_match", "channel": channel} for channel in ("a", "b", "b")]

    names = [reward.name for reward in build(registry, *sections)]

    assert names == ["exact_match", "exact_match[b]", "exact_match[2]"]


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ({"name": "exact"}, "Unknown reward 'exact'; did you mean 'exact_match'"),
        (
            {"name": "numeric", "abs_tole": 1},
            r"'rewards\.0\.abs_tole': did you mean 'rewards\.0\.abs_tol'",
        ),
        ({"name": "numeric", "abs_tol": "wide"}, r"rewards\.0\.abs_tol = 'wide'"),
        ({"name": "json:loads", "strict": True}, r"unknown key 'rewards\.0\.strict'"),
        ({"name": "json:loadz"}, "no attribute 'loadz'"),
    ],
)
def test_mistakes_name_key_and_fix(registry, section, reason):
    with pytest.raises(ConfigError, match=reason):
        build(registry, section)


def test_a_plugins_factory_without_a_model_gets_the_options_as_arguments(tmp_path):
    file = tmp_path / "plugin_with_reward.py"
    file.write_text(
        "from agl_core.plugins import hookimpl\n"
        "@hookimpl\n"
        "def agl_register_rewards(register): register('dict', 'builtins:dict')\n"
        "@hookimpl\n"
        "def agl_register_metrics(register): register('m', 'a:b')\n",
        encoding="utf-8",
    )
    registry = load_plugins([file]).registry("rewards")

    (made,) = build(registry, {"name": "dict", "size": 3})

    assert made.function == {"size": 3}
    with pytest.raises(PluginError, match="plugin_with_reward"):
        load_plugins([tmp_path / "plugin_with_reward_too.py"])


def test_options_that_a_factory_does_not_take_name_the_section(tmp_path):
    file = tmp_path / "plugin_with_strict_reward.py"
    file.write_text(
        "from agl_core.plugins import hookimpl\n"
        "@hookimpl\n"
        "def agl_register_rewards(register): register('strict', 'operator:length_hint')\n",
        encoding="utf-8",
    )
    registry = load_plugins([file]).registry("rewards")

    with pytest.raises(ConfigError, match=r"rewards\.0 \(strict\) does not take \['size'\]"):
        build(registry, {"name": "strict", "size": 3})
