"""`agl export`: other programs load what was written and give the ids that `agl serve` gives."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from agl_torch.engine import TorchEngine
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from agl_core.errors import ConfigError
from agl_core.types import Policy
from tests.exporting import OPTIONS, POLICY, exported, most_likely, served_ids, trained_run


def loaded(directory):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


@pytest.fixture
async def checkpoint(model_path, tmp_path):
    return await trained_run(tmp_path / "run", model_path)


async def test_transformers_gives_the_ids_that_are_served(checkpoint, model_path, tmp_path):
    """Issue 15: the directory, and the adapter in peft on its base model."""
    whole = await exported(checkpoint, tmp_path / "hf", "hf")
    adapter = await exported(checkpoint, tmp_path / "adapter", "adapter")
    served = await served_ids(checkpoint)
    assert most_likely(loaded(whole), served.prompt) == served.answer
    assert served.answer != most_likely(loaded(model_path), served.prompt)
    base = json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft's, of torch
        adapted = PeftModel.from_pretrained(loaded(base), str(adapter)).eval()
    assert most_likely(adapted, served.prompt) == served.answer
    for directory in (whole, adapter):
        tokenizer = AutoTokenizer.from_pretrained(directory)
        assert tokenizer.chat_template == AutoTokenizer.from_pretrained(model_path).chat_template
        assert not list(directory.rglob("training_state*"))
    assert not (adapter / "adapter").exists()
    again = await served_ids(whole)
    assert again == served, "agl serve takes the export as well as the run"


@pytest.mark.parametrize("form", ["hf", "adapter", "gguf"])
async def test_an_untouched_adapter_is_no_export(model_path, tmp_path, form):
    """Issue 15: a clear error, and no file."""
    if form == "gguf":
        pytest.importorskip("gguf")
    checkpoint = await trained_run(tmp_path / "run", model_path, updates=0)
    with pytest.raises(ConfigError, match=rf"is untouched: no update .* '{model_path}'"):
        await exported(checkpoint, tmp_path / "out", form)
    assert not list((tmp_path / "out").rglob("*.*"))


async def test_merging_that_changes_nothing_is_an_error(checkpoint, tmp_path):
    """Its sums are lost in bfloat16; the adapter alone keeps them."""
    adapter = checkpoint / "policies" / POLICY / "adapter"
    file, base = adapter / "adapter_model.safetensors", adapter / "base.json"
    save_file({name: tensor * 1e-6 for name, tensor in load_file(file).items()}, file)
    base.write_text(base.read_text().replace("float32", "bfloat16"))
    with pytest.raises(ConfigError, match=r"lost when it is merged: in bfloat16.*--format adapter"):
        await exported(checkpoint, tmp_path / "out", "hf")
    assert not (tmp_path / "out").exists()
    await exported(checkpoint, tmp_path / "out", "adapter")


async def test_a_policy_without_an_adapter_has_none_to_export(model_path, tmp_path):
    checkpoint = await trained_run(tmp_path / "run", model_path)
    whole = OPTIONS.model_copy(update={"lora": None})
    engine = TorchEngine(whole, None)
    await engine.start([Policy(name="full", model=model_path)])
    await engine.save("full", str(checkpoint / "policies" / "full"))
    await engine.stop()
    with pytest.raises(ConfigError, match="'full' has no adapter: all its weights were trained"):
        await exported(checkpoint, tmp_path / "out", "adapter")
    await exported(checkpoint, tmp_path / "hf", "hf")
    written = {path.name for path in (tmp_path / "hf").iterdir()}
    assert written == {
        "full",
        POLICY,
        "config.json",
    }
