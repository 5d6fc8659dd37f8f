"""``agl export``: files of what was learned."""

from __future__ import annotations

import json
import struct

import pytest

from agl_core.types import PromptTemplate
from tests.plugins.results.conftest import captured
from tests.trainers.prompts.fakes import TEXT
from tests.trainers.prompts.runs import KIND, LONGER


def texts(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes().decode()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_each_tuned_prompt_is_a_file_to_paste_back(agl, run, tmp_path):
    run.checkpoint(
        0,
        writer=captured(f"{KIND}\r\n"),
        search=captured("Finds goods.", known="Searches.", agents=("writer*",), tool="search"),
        greeting=PromptTemplate(template="Hi {name}", agents=("host",)),
        note=PromptTemplate(template="untuned"),
    )
    result = agl("export", "shop", "--prompts", "out")
    assert result.exit_code == 0, result.output
    assert texts(tmp_path / "out") == {
        "writer.txt": f"{KIND}\r\n",
        "replaced/writer.txt": TEXT,
        "search.txt": "Finds goods.",
        "replaced/search.txt": "Searches.",
        "greeting.txt": "Hi {name}",
    }
    replaced = "out/replaced/search.txt"
    assert result.output.splitlines() == [
        "out/writer.txt: the system prompt of writer, in place of out/replaced/writer.txt",
        f"out/search.txt: the description of tool 'search' of writer*, in place of {replaced}",
        "out/greeting.txt: read by agl.resource('greeting')",
    ]


def test_the_best_checkpoint_is_exported(agl, run, tmp_path):
    best = run.checkpoint(3, writer=captured(LONGER))
    newest = run.checkpoint(5, writer=captured(KIND))
    agl("export", "shop", "--prompts", "newest")  # the run has not ended
    run.report(f"checkpoints/{best.name}")
    agl("export", run.directory, "--prompts", "best")
    agl("export", newest, "--prompts", "named")
    found = {name: texts(tmp_path / name)["writer.txt"] for name in ("newest", "best", "named")}
    assert found == {"newest": KIND, "best": LONGER, "named": KIND}


def test_no_other_text_is_overwritten(agl, run, tmp_path):
    run.checkpoint(0, writer=captured(KIND))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "writer.txt").write_text("mine")
    result = agl("export", "shop", "--prompts", "out")
    assert result.exit_code == 2
    assert "out/writer.txt exist with other texts" in result.output
    assert texts(tmp_path / "out") == {"writer.txt": "mine"}
    assert agl("export", "shop", "--prompts", "out", "--force").exit_code == 0
    assert texts(tmp_path / "out")["writer.txt"] == KIND
    assert agl("export", "shop", "--prompts", "out").exit_code == 0, "equal files are no conflict"


def test_a_name_that_is_no_file_name_is_encoded(agl, run, tmp_path):
    run.checkpoint(0, **{"a/../b": captured("x"), "é": captured("y\ud800")})
    assert agl("export", "shop", "--prompts", "out").exit_code == 0
    assert {"a%2F..%2Fb.txt", "%C3%A9.txt"} <= set(texts(tmp_path / "out"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("shop",), "Say what to write"),
        (("shop", "--prompts", "out"), "has no checkpoint: nothing was learned so far"),
        (("absent", "--prompts", "out"), "'absent' is not a run"),
    ],
)
def test_wrong_usage(agl, run, arguments, said):
    result = agl("export", *arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_a_checkpoint_without_tuned_prompts_and_weights_says_so(agl, run):
    run.checkpoint(0, note=PromptTemplate(template="untuned"))
    result = agl("export", "shop", "--prompts", "out")
    assert (result.exit_code, "has no tuned prompts" in result.output) == (2, True)
    result = agl("export", "shop", "weights")
    assert (result.exit_code, "holds no weights" in result.output) == (2, True)


def test_weights_are_written_by_the_engine_to_an_empty_directory(agl, run, tmp_path):
    checkpoint = run.checkpoint(1)
    (checkpoint / "policies" / "trained").mkdir(parents=True)
    (checkpoint / "policies" / "trained" / "model.bin").write_bytes(b"weights")
    result = agl("export", "shop", "out")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out" / "trained" / "model.bin").read_bytes() == b"weights"
    source = checkpoint.relative_to(tmp_path) / "policies" / "trained"
    assert result.output.splitlines() == [f"out/trained: weights of {source}"]
    assert (tmp_path / "out" / "config.json").is_file(), "agl.evaluate takes it as a checkpoint"
    result = agl("export", "shop", "out")
    assert (result.exit_code, "is not empty" in result.output) == (2, True)
    assert agl("export", "shop", "out", "--force").exit_code == 0


def adapter_of(checkpoint, name, *, up):
    """Write an adapter whose second matrix has these numbers."""
    directory = checkpoint / "policies" / name / "adapter"
    directory.mkdir(parents=True)
    layer = "base_model.model.layer.lora_"
    entries = {
        "__metadata__": {"format": "pt"},
        f"{layer}A.weight": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]},
        f"{layer}B.weight": {"dtype": "F32", "shape": [2, 1], "data_offsets": [8, 16]},
    }
    header = json.dumps(entries).encode()
    numbers = struct.pack("<4f", 0.5, 0.25, *up)
    file = directory / "adapter_model.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header + numbers)
    (directory / "adapter_config.json").write_text("{}")
    (directory / "base.json").write_text(json.dumps({"model": "Qwen/base", "dtype": "float32"}))
    (directory.parent / "tokenizer.json").write_text("{}")
    (directory.parent / "training_state.pt").write_text("")


def test_an_adapter_is_a_directory_of_its_own(agl, run, tmp_path):
    checkpoint = run.checkpoint(1)
    adapter_of(checkpoint, "writer", up=(0.0, 0.1))
    result = agl("export", "shop", "out", "--format", "adapter")
    assert result.exit_code == 0, result.output
    source = checkpoint.relative_to(tmp_path) / "policies" / "writer"
    said = f"out/writer: adapter of Qwen/base, from {source}"
    assert result.output.splitlines() == [said]
    assert {path.name for path in (tmp_path / "out" / "writer").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "base.json",
        "tokenizer.json",
    }


def test_an_untouched_adapter_is_named_and_the_others_are_exported_without_it(agl, run, tmp_path):
    checkpoint = run.checkpoint(1)
    adapter_of(checkpoint, "idle", up=(0.0, 0.0))
    adapter_of(checkpoint, "writer", up=(0.0, 0.1))
    result = agl("export", "shop", "out", "--format", "adapter")
    assert result.exit_code == 2
    assert "policies/idle' is untouched" in result.output
    assert "weights are those of 'Qwen/base'" in result.output
    assert not (tmp_path / "out").exists()
    result = agl("export", "shop", "out", "--format", "adapter", "--policy", "writer")
    assert result.exit_code == 0, result.output
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["writer"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--format", "adapter"), "Policy 'trained' has no adapter"),
        (("--dtype", "float16"), "--dtype is for --format gguf; --format hf keeps"),
        (("--policy", "reader"), "has no policy ['reader']; it has ['trained']"),
        (("--format", "onnx"), "'onnx' is not one of 'hf', 'adapter', 'gguf'"),
    ],
)
def test_a_form_that_does_not_fit_is_named(agl, run, options, said):
    weights = run.checkpoint(1) / "policies" / "trained"
    weights.mkdir(parents=True)
    (weights / "model.safetensors").write_bytes(b"")
    result = agl("export", "shop", "out", *options)
    assert (result.exit_code, said in result.output) == (2, True), result.output


def test_a_damaged_adapter_is_a_typed_error(agl, run):
    checkpoint = run.checkpoint(1)
    adapter_of(checkpoint, "writer", up=(0.0, 0.1))
    file = checkpoint / "policies" / "writer" / "adapter" / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:20])
    result = agl("export", "shop", "out", "--format", "adapter")
    assert (result.exit_code, "cannot be read" in result.output) == (2, True), result.output


def test_gguf_names_the_extra_that_it_needs(agl, run, tmp_path, monkeypatch):
    weights = run.checkpoint(1) / "policies" / "trained"
    weights.mkdir(parents=True)
    (weights / "model.safetensors").write_bytes(b"")
    monkeypatch.setattr("agl_gguf._package.find_spec", lambda name: None)
    result = agl("export", "shop", "out", "--format", "gguf")
    assert (result.exit_code, "agl-core[gguf]" in result.output) == (1, True), result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", ["hf", "adapter"])
def test_a_directory_that_cannot_be_made_is_named(agl, run, tmp_path, form):
    adapter_of(run.checkpoint(1), "writer", up=(0.0, 0.1))
    (tmp_path / "taken").write_text("")
    result = agl("export", "shop", "taken/out", "--format", form)
    assert result.exit_code == 2, result.output
    assert "Cannot write weights to 'taken/out': Not a directory" in result.output
