import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from agl_core._builtin import load_plugins
from agl_core.app.names import check_sections
from agl_core.config import AlgorithmConfig, EngineConfig, RewardConfig, RunConfig
from agl_core.config.loader import (
    check_options,
    dump,
    load_config,
    resolve,
    save_config,
    with_plugins,
)
from agl_core.errors import ConfigError
from agl_core.types import FailureKind


def message(data, overrides=()):
    with pytest.raises(ConfigError) as caught:
        resolve(data, overrides)
    return str(caught.value)


@pytest.mark.parametrize("text", ["1e-5", "1E-5", "1.0e-5", "0.00001", "+1e-05", ".1e-4"])
@pytest.mark.parametrize("form", ["toml", "yaml", "set"])
def test_small_numbers_are_numbers_in_every_format(tmp_path, text, form):
    file = tmp_path / f"run.{'yaml' if form == 'yaml' else 'toml'}"
    body = {"toml": "", "yaml": f"algorithm:\n  lr: {text}\n", "set": ""}[form]
    if form == "toml" and not text.startswith("."):
        body = f"[algorithm]\nlr = {text}\n"
    file.write_text(body, encoding="utf-8")

    config = load_config(file, [f"algorithm.lr={text}"] if form == "set" else [])

    assert config.algorithm.lr == 1e-5


@pytest.mark.parametrize("text", ["false", '"false"', "False", "off", '"off"', "no", "0"])
def test_false_in_any_dress_is_false(tmp_path, text):
    file = tmp_path / "run.yaml"
    file.write_text(f"train:\n  resume: {text}\n", encoding="utf-8")

    assert load_config(file).train.resume is False
    assert resolve({}, [f"train.resume={text}"]).train.resume is False


def test_a_boolean_that_is_none_is_a_typed_error():
    assert "train.resume = 'maybe'" in message({"train": {"resume": "maybe"}})


def test_files_are_read_as_utf8_with_or_without_mark_and_any_line_end(tmp_path):
    file = tmp_path / "run.toml"
    file.write_bytes('name = "Prüfung ☃"\r\n'.encode("utf-8-sig"))

    assert load_config(file).name == "Prüfung ☃"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("absent.toml", None, "cannot read"),
        ("run.ini", b"", r"run\.ini' is no file that ends in \.toml"),
        ("", None, "is no file that ends in"),
        ("run.toml", b"seed = 1 1", "line 1"),
        ("run.toml", "name = 'é'".encode("latin-1"), "not UTF-8"),
        ("run.json", b"[]", "must be a table"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, name, content, reason):
    if content is not None:
        (tmp_path / name).write_bytes(content)

    with pytest.raises(ConfigError, match=reason) as caught:
        load_config(tmp_path / name)
    assert name in str(caught.value)


def test_an_empty_file_is_the_default_configuration(tmp_path):
    (tmp_path / "run.yaml").write_text("", encoding="utf-8")

    assert load_config(tmp_path / "run.yaml") == RunConfig()


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        ({"train": {"stepz": 3}}, "unknown key 'train.stepz': did you mean 'train.steps'?"),
        ({"sed": 1}, "unknown key 'sed': did you mean 'seed'?"),
        ({"group_size": 4}, "unknown key 'group_size': did you mean 'algorithm.group_size'?"),
        (
            {"policies": {"model": {"agents": [], "agent": 1}}},
            "unknown key 'policies.model.agent': did you mean 'policies.model.agents'?",
        ),
        (
            {"learnig_rate": 1},
            "unknown key 'learnig_rate' (the top level has:",
        ),
        ({"events": 3}, "a plugin's section is a table: [events]"),
        ({"tasks": {"train": "x", "test": "y"}}, "(tasks has: train, val, columns)"),
    ],
)
def test_an_unknown_key_names_the_nearest(data, hint):
    assert hint in message(data)


def test_every_wrong_key_is_told_at_once_with_its_value():
    told = message({"seed": "x", "train": {"tasks_per_step": 0}, "rewards": [{}]})

    assert "seed = 'x'" in told
    assert "train.tasks_per_step = 0: input should be greater than 0" in told
    assert "rewards.0.name: is required" in told


def test_the_alternatives_of_one_key_are_one_reason():
    told = message({"algorithm": {"lr": -1}})

    assert told.count("algorithm.lr = -1") == 1
    assert "greater than 0 or input should be 0" in told


def test_an_unknown_dictionary_key_names_its_value():
    told = message({"rollout": {"failures": {"agnet": "drop"}}})

    assert "rollout.failures.agnet = 'drop'" in told


def test_secrets_are_not_repeated_in_messages():
    class Options(BaseModel):
        api_key: int

    section = EngineConfig.model_validate({"name": "x", "api_key": "hunter2"})

    with pytest.raises(ConfigError) as caught:
        check_options(section, Options, where="engine")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("value", ["inf", "nan", ".inf"])
def test_numbers_must_be_finite(value):
    told = message({}, [f"eval.threshold={value}"])

    assert "eval.threshold" in told
    assert "finite" in told


@pytest.mark.parametrize("value", ["1e31", "-1e308"])
def test_a_penalty_is_a_return_that_training_can_hold(value):
    """A5: like rewards, whose sums are checked."""
    assert "rollout.penalty" in message({}, [f"rollout.penalty={value}"])


def test_a_store_of_a_server_can_be_read_back(tmp_path):
    config = resolve({"store": {"name": "http", "url": "http://h:1"}})
    save_config(config, tmp_path)

    assert load_config(tmp_path / "config.json").store == config.store


def test_overrides_take_the_type_of_their_field():
    config = resolve(
        {"store": {"path": "x.db"}, "rewards": [{"name": "a"}, {"name": "b"}]},
        [
            "name=123",
            "algorithm.lr=0",
            "train.steps=7",
            "train.resume=true",
            "agents=[writer, 'critic 2']",
            "model=null",
            "store.path=null",
            "engine.device=cpu",
            "engine.lora={rank: 8}",
            'engine.revision="123"',
            "rewards.1.channel=style",
            'policies."my.agent".agents=["a"]',
            "rollout.failures.agent=penalize",
            "tasks.train=rows.jsonl",
        ],
    )

    assert config.name == "123"
    assert config.algorithm.lr == 0
    assert config.train.steps == 7
    assert config.train.resume is True
    assert config.agents == ["writer", "critic 2"]
    assert config.store.options == {"path": None}
    assert config.engine.options == {"device": "cpu", "lora": {"rank": 8}, "revision": "123"}
    assert [reward.channel for reward in config.rewards] == ["main", "style"]
    assert config.policies["my.agent"].agents == ["a"]
    assert config.tasks.train == str(Path.cwd() / "rows.jsonl")


@pytest.mark.parametrize("text", ["#1", "a: b", "http://host:8000/v1", "@x", "C:\\data\\m", "a #b"])
def test_text_overrides_arrive_letter_for_letter(text):
    assert resolve({}, [f"model={text}"]).model == text


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("seed", "write --set section.key=value"),
        ("=1", "write --set section.key=value"),
        ("a..b=1", "write --set section.key=value"),
        ("a.=1", "write --set section.key=value"),
        ("seed.x=1", "'seed' is 3, which has no keys"),
        ("rewards.5.channel=x", "no index of a list of 0"),
        ("train.stpes=1", "did you mean 'train.steps'?"),
        ("train.steps=many", "train.steps = 'many'"),
        ("train.steps=1.5", "train.steps = 1.5"),
    ],
)
def test_wrong_overrides_are_named(override, reason):
    assert reason in message({"seed": 3, "rewards": []}, [override])


def test_failure_kinds_left_out_keep_their_default():
    failures = resolve({"rollout": {"failures": {"agent": "penalize"}}}).rollout.failures

    assert failures == {**RunConfig().rollout.failures, FailureKind.AGENT: "penalize"}


def test_overriding_leaves_the_data_alone():
    data = {"train": {"steps": 3}}

    resolve(data, ["train.steps=4"])

    assert data == {"train": {"steps": 3}}


def test_the_resolved_configuration_can_be_read_back(tmp_path):
    config = resolve(
        {
            "name": "Prüfung",
            "directory": str(tmp_path),
            "engine": {"name": "torch", "lora": {"rank": 4}},
        }
    )

    file = save_config(config, tmp_path)

    assert load_config(file) == config
    assert json.loads(dump(config))["train"]["steps"] == config.train.steps


@given(
    st.builds(
        dict,
        prompts=st.dictionaries(st.text(), st.text()),
        seed=st.integers(),
        channel_weights=st.dictionaries(
            st.text(), st.floats(allow_nan=False, allow_infinity=False)
        ),
        agents=st.lists(st.text()),
    )
)
def test_dump_and_resolve_are_inverse(data):
    config = resolve(data)

    assert resolve(json.loads(dump(config))) == config


def test_files_are_found_beside_the_configuration(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "run.toml").write_text(
        'agent = "agent.py:run"\nmodel = "./weights"\nplugins = ["mine.py"]\n'
        '[policies.near]\nagents = ["a"]\nmodel = "../other"\n'
        '[policies.hub]\nagents = ["b"]\nmodel = "org/name"\n'
        '[tasks]\ntrain = "rows.jsonl"\nval = "package.module:rows"\n'
        '[[rewards]]\nname = "score.py:score"\n[[rewards]]\nname = "numeric"\n',
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)

    config = load_config(Path("project/run.toml"))

    assert config.agent == f"{folder / 'agent.py'}:run"
    assert config.model == str(folder / "weights")
    assert config.policies["near"].model == str(folder / "../other")
    assert config.policies["hub"].model == "org/name"
    assert config.plugins == [str(folder / "mine.py")]
    assert config.tasks.train == str(folder / "rows.jsonl")
    assert config.tasks.val == "package.module:rows"
    assert [reward.name for reward in config.rewards] == [
        f"{folder / 'score.py'}:score",
        "numeric",
    ]


def test_what_no_file_names_counts_from_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = {
        "agent": "agent.py:run",
        "model": "./weights",
        "plugins": ["mine.py"],
        "rewards": [{"name": "score.py:score"}, {"name": "numeric"}],
        "tasks": {"train": "package.module:rows"},
    }

    config = resolve(data, ["tasks.val=val.jsonl", "model=hub/name"])

    assert config.agent == f"{tmp_path / 'agent.py'}:run"
    assert config.model == "hub/name"
    assert config.plugins == [str(tmp_path / "mine.py")]
    assert [reward.name for reward in config.rewards] == [
        f"{tmp_path / 'score.py'}:score",
        "numeric",
    ]
    assert (config.tasks.train, config.tasks.val) == (
        "package.module:rows",
        str(tmp_path / "val.jsonl"),
    )


def test_a_stored_configuration_means_the_same_from_any_folder(tmp_path, monkeypatch):
    run = tmp_path / "agl_runs" / "run"
    run.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    config = resolve({"plugins": ["mine.py"]}, ["tasks.train=rows.jsonl"])
    file = save_config(config, run)
    monkeypatch.chdir(run)

    stored = load_config(file)

    assert stored.directory == str(tmp_path / "agl_runs")
    assert stored.plugins == [str(tmp_path / "mine.py")]
    assert stored.tasks.train == str(tmp_path / "rows.jsonl")


def test_further_plugin_files_are_named_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = resolve({"plugins": ["one.py"]})

    found = with_plugins(config, ["two.py", "x/../one.py", str(tmp_path / "two.py")])

    assert found.plugins == [str(tmp_path / "one.py"), str(tmp_path / "two.py")]


class Clip(BaseModel):
    model_config = ConfigDict(extra="forbid")

    clip_low: float = 0.2
    definition: str = Field(default="", alias="schema")


class Lenient(BaseModel):
    clip_low: float = 0.2


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


def section(**options):
    return AlgorithmConfig.model_validate({"name": "grpo", **options})


def test_plugin_options_are_typed_by_the_plugins_model():
    options = check_options(section(clip_low="0.1", schema="s"), Clip, where="algorithm")

    assert (options.clip_low, options.definition) == (0.1, "s")


@pytest.mark.parametrize("model", [Clip, Lenient])
def test_a_misspelt_plugin_option_names_the_nearest_of_the_plugin(model):
    with pytest.raises(
        ConfigError, match=r"'algorithm\.clip_lw': did you mean 'algorithm\.clip_low'"
    ):
        check_options(section(clip_lw=1), model, where="algorithm")


def test_a_misspelt_option_of_the_section_names_the_nearest_of_the_section():
    with pytest.raises(ConfigError, match=r"did you mean 'algorithm\.group_size'"):
        check_options(section(group_sise=1), Clip, where="algorithm")


def test_a_wrong_plugin_option_names_path_and_value():
    with pytest.raises(ConfigError, match=r"algorithm\.clip_low = 'wide'"):
        check_options(section(clip_low="wide"), Clip, where="algorithm")


def test_a_plugin_without_options_takes_none():
    assert check_options(RewardConfig(name="x"), None, where="rewards.0") is None
    odd = RewardConfig.model_validate({"name": "x", "chanel": "y"})

    with pytest.raises(ConfigError, match=r"did you mean 'rewards\.0\.channel'"):
        check_options(odd, None, where="rewards.0")


def test_a_plugin_may_take_any_option():
    assert check_options(section(anything=1), Open, where="algorithm").model_extra == {
        "anything": 1
    }


def test_a_thinking_tag_that_is_none_is_refused():
    assert "'<think>'" in message({"capture": {"thinking_tags": ["<think>"]}})


@pytest.mark.parametrize("section", ["engine", "algorithm", "store"])
def test_a_section_may_be_written_as_its_name(section: str) -> None:
    config = resolve({section: "http" if section == "engine" else "memory"})
    named = getattr(config, section)
    assert named.name == ("http" if section == "engine" else "memory")
    assert load_again(config) == config


@pytest.mark.parametrize("chooser", ["engine", "algorithm"])
def test_a_table_called_like_the_engine_or_the_algorithm_is_the_engines(chooser: str) -> None:
    config = resolve({chooser: "heavy", "heavy": {"depth": {"a": 1}}}, ["heavy.depth.b=2"])
    assert config.engine.options == {"heavy": {"depth": {"a": 1, "b": 2}}}
    assert load_again(config) == config


def test_a_table_called_like_no_chosen_plugin_is_unknown() -> None:
    with pytest.raises(ConfigError, match="unknown key 'heavy'"):
        check_sections(resolve({"engine": "light", "heavy": {"depth": 1}}), load_plugins())


@pytest.mark.parametrize("value", [3, "text", [1], None])
def test_a_key_that_is_no_section_is_unknown(value: object) -> None:
    with pytest.raises(ConfigError, match="unknown key 'sede': did you mean 'seed'"):
        resolve({"sede": value})


def test_a_section_of_a_plugin_is_validated_by_its_options() -> None:
    plugins = load_plugins()
    config = resolve({"events": {"url": "redis://host"}}, ["events.history=5"])
    check_sections(config, plugins)
    assert config.sections == {"events": {"url": "redis://host", "history": 5}}
    assert load_again(config) == config
    with pytest.raises(
        ConfigError, match=r"unknown key 'events\.urll': did you mean 'events\.url'"
    ):
        check_sections(resolve({"events": {"urll": "redis://host"}}), plugins)
    with pytest.raises(ConfigError, match="unknown key 'evnts': did you mean 'events'") as unknown:
        check_sections(resolve({"evnts": {"url": "redis://host"}}), plugins)
    assert str(unknown.value).count("trackers") == 1


def load_again(config: RunConfig) -> RunConfig:
    return resolve(json.loads(dump(config)))


def test_overrides_know_the_shorthand() -> None:
    config = resolve({"algorithm": "rloo"}, ["algorithm.lr=0.5", "engine=http"])
    assert (config.algorithm.name, config.algorithm.lr, config.engine.name) == ("rloo", 0.5, "http")
    config = resolve({"algorithm": {"lr": 0.5}}, ["algorithm=rloo"])
    assert (config.algorithm.name, config.algorithm.lr) == ("rloo", 0.5)


def test_null_for_an_unknown_key_is_refused():
    with pytest.raises(ConfigError, match=r"unknown key 'algorithm\.url'"):
        check_options(section(url=None), Clip, where="algorithm")
