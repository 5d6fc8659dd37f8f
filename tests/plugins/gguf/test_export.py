"""`agl export --format gguf`: the file answers as `agl serve` does."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.exporting import exported, most_likely, served_ids, trained_run
from tests.plugins.gguf.conftest import make_model


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
async def test_transformers_gives_the_ids_that_are_served(tmp_path, kind):
    model = make_model(tmp_path / "model", kind)
    checkpoint = await trained_run(tmp_path / "run", str(model))
    served = await served_ids(checkpoint)
    file = await exported(checkpoint, tmp_path / "out", "gguf")
    read = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    assert most_likely(read.eval(), served.prompt) == served.answer
    assert [path.name for path in file.parent.iterdir()] == ["trained.gguf"]
    smaller = await exported(checkpoint, tmp_path / "half", "gguf", dtype="float16")
    assert smaller.stat().st_size < 0.8 * file.stat().st_size
