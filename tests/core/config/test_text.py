"""Values of YAML files and of ``--set``."""

import pytest

from agl_core.config.loader import load_config, resolve
from agl_core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("seed: 1:30", "seed = '1:30'"),
        ("seed: 1\nseed: 2", r"the key 'seed' is given twice \(line 2\)"),
        ("a: &a {x: 1}\nb:\n  <<: *a\n  x: 2\n  x: 3", r"the key 'x' is given twice \(line 5\)"),
        ("a: &a {x: 1}\nb:\n  <<: *a\n  1: 2", r"the key 1 is not text: quote it \(line 4\)"),
        ("a: !!set {x, y}", r"!!set is not supported: write a list.* \(line 1\)"),
        ("a: !!binary aGk=", "!!binary is not supported"),
        ("a: !!omap [x: 1]", "!!omap is not supported"),
        ("a: !!pairs [x: 1]", "!!pairs is not supported"),
        ("%YAML 1.1\n---\nseed: 010", "read as YAML 1.2: remove its line %YAML"),
        ("%YAML 1.3\n---\nseed: 010", "read as YAML 1.2: remove its line %YAML"),
        ("engine: {x: -.inf}", "engine.x = -inf: must be a finite number"),
        ("engine: {x: .NaN}", "engine.x = nan: must be a finite number"),
        ("a: !!int x", "cannot be parsed"),
        ("channel_weights:\n  1: 2.0", r"the key 1 is not text: quote it \(line 2\)"),
        ("a: [1", r"cannot be parsed: .* \(line 1\)"),
        ("a: !!python/object:os.system x", "cannot be parsed"),
        ("- 1", "must be a table"),
        ("text", "must be a table"),
    ],
)
def test_yaml_surprises_are_refused(tmp_path, text, reason):
    file = tmp_path / "run.yaml"
    file.write_text(text, encoding="utf-8")

    with pytest.raises(ConfigError, match=reason):
        load_config(file)


def test_yaml_is_read_as_1_2(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("seed: 010\ntrain: {steps: 0x10, resume: yes}\n", encoding="utf-8")

    config = load_config(file)

    assert (config.seed, config.train.steps) == (10, 16)
    assert config.train.resume is True


def test_a_key_that_is_given_twice_shows_no_value(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("engine:\n  api_key: hunter1\n  api_key: hunter2\n", encoding="utf-8")

    with pytest.raises(ConfigError, match=r"the key 'api_key' is given twice \(line 3\)") as caught:
        load_config(file)
    assert "hunter" not in str(caught.value)
    assert "hunter" not in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-1", -1),
        ("+12", 12),
        ("010", 10),
        ("0o10", 8),
        ("0xfF", 255),
        ("1.", 1.0),
        (".5e3", 500.0),
        ("-1.5E-3", -0.0015),
        ("1e3", 1000.0),
        ("!!float 1", 1.0),
        ("1_000", "1_000"),
        ("1_0.5", "1_0.5"),
        ("0b11", "0b11"),
        ("-0x10", "-0x10"),
        ("0x1_0", "0x1_0"),
        ("1:30", "1:30"),
        ("'1'", "1"),
        ("yes", "yes"),
        ("true", True),
        ("~", None),
    ],
)
def test_yaml_numbers_are_those_of_the_core_schema(tmp_path, text, value):
    file = tmp_path / "run.yaml"
    file.write_text(f"%YAML 1.2\n---\nengine:\n  x: {text}\n", encoding="utf-8")

    read = load_config(file).engine.options["x"]

    assert (type(read), read) == (type(value), value)


def test_yaml_merges_a_table_whose_keys_may_be_given_again(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "engine:\n"
        "  a: &a {x: 1, y: 2}\n"
        "  b: &b {<<: *a, y: 3}\n"
        "  c: {<<: [*b, *a], z: 4}\n"
        "  d: {<<: *b, x: 5}\n",
        encoding="utf-8",
    )

    assert load_config(file).engine.options == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "c": {"x": 1, "y": 3, "z": 4},
        "d": {"x": 5, "y": 3},
    }


def test_yaml_text_stays_text(tmp_path):
    file = tmp_path / "run.yml"
    file.write_text(
        "name: no\nagents: [on, 2024-01-02, writer]\nbase: &b {agents: [x]}\n".replace(
            "base: &b {agents: [x]}\n", "policies: {p: &b {agents: [x]}, q: {<<: *b, model: m}}\n"
        ),
        encoding="utf-8",
    )

    config = load_config(file)

    assert config.name == "no"
    assert config.agents == ["on", "2024-01-02", "writer"]
    assert (config.policies["q"].agents, config.policies["q"].model) == (["x"], "m")


@pytest.mark.parametrize("text", ["010", "0123456", "-07", "+5", "-0", "0x10", "0o7", "1_000"])
def test_text_that_is_no_plain_decimal_is_not_made_a_number(text):
    options = resolve({}, [f"engine.revision={text}", f"store.path={text}"])

    assert (options.engine.options, options.store.options) == ({"revision": text}, {"path": text})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-12", -12),
        ("1e-6", 1e-6),
        ("1E-6", 1e-6),
        (".1e-4", 1e-5),
        ("1e3", 1000.0),
        ("0.5", 0.5),
        ("-0.5", -0.5),
        ("1.50", 1.5),
    ],
)
def test_decimals_are_numbers_in_options_of_any_type(text, value):
    read = resolve({}, [f"engine.deep.x={text}"]).engine.options["deep"]["x"]

    assert (type(read), read) == (type(value), value)


def test_fields_of_numbers_take_text_of_other_forms():
    config = resolve({}, ["algorithm.lr=+1e-6", "train.steps=010", "seed=1_000"])

    assert (config.algorithm.lr, config.train.steps, config.seed) == (1e-6, 10, 1000)
