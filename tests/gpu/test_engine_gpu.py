"""The torch engine's exactness on the device that ``AGL_DEVICE`` names, and its speed there."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from agl_torch.engine import TorchEngine  # noqa: E402
from agl_torch.losses.policy_gradient import (  # noqa: E402
    ClipOptions,
    PolicyGradient,
)
from agl_torch.models import without_progress_bars  # noqa: E402
from agl_torch.options import TorchOptions  # noqa: E402
from tokenizers import pre_tokenizers  # noqa: E402
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer  # noqa: E402

from agl_core.interfaces import AlgorithmSetup  # noqa: E402
from agl_core.types import Batch, Policy  # noqa: E402

DEVICE = os.environ.get("AGL_DEVICE", "cpu")
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SETUP = AlgorithmSetup(name="grpo", loss_factory=lambda: PolicyGradient(ClipOptions()), lr=1e-4)
CONFIGURATIONS = [
    pytest.param({"dtype": "float32"}, 2e-4, id="float32"),
    pytest.param({"dtype": "bfloat16"}, 0.2, id="bfloat16"),
    pytest.param({"dtype": "float32", "lora": {"rank": 8}}, 2e-4, id="lora"),
    pytest.param({"dtype": "bfloat16", "lora": {"rank": 8}}, 0.2, id="bfloat16-lora"),
    pytest.param({"dtype": "float32", "deterministic": True}, 2e-4, id="deterministic"),
]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model of the demo's shape."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *special]
    tokenizer = Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate(vocabulary)},
        merges=[],
        unk_token=special[0],
        eos_token=special[2],
        pad_token=special[0],
        extra_special_tokens=[special[1]],
    )
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=832,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    directory = tmp_path_factory.mktemp("model")
    with without_progress_bars():
        Qwen2ForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


@asynccontextmanager
async def running(model: str, **options: Any) -> AsyncIterator[TorchEngine]:
    engine = TorchEngine(TorchOptions(device=DEVICE, **options), SETUP)
    await engine.start([Policy(name="p", model=model, trainable=True)])
    try:
        yield engine
    finally:
        await engine.stop()


async def ask(engine: TorchEngine, content: str, **fields: Any) -> dict[str, Any]:
    body = {
        "messages": [{"role": "user", "content": content}],
        "logprobs": True,
        "return_token_ids": True,
        **fields,
    }
    reply = await engine.backend("p").chat(json.dumps(body).encode(), headers={}, timeout_s=300)
    assert reply.status == 200
    return json.loads(b"".join([part async for part in reply.body()]))


async def groups(engine: TorchEngine, *, count: int, n: int, **fields: Any) -> list[dict[str, Any]]:
    rng = random.Random(0)
    prompts = ["".join(rng.choices("abcdefgh ", k=45)) for _ in range(count)]
    asked = [ask(engine, prompt, seed=index, **fields) for prompt in prompts for index in range(n)]
    return await asyncio.gather(*asked)


def batch_of(documents: Sequence[dict[str, Any]], *, n: int) -> Batch:
    """Each group as a tree of its own: the prompt, and one branch per answer."""
    columns: dict[str, array[Any]] = {
        name: array("i") for name in ("tokens", "parents", "positions", "nodes", "targets", "calls")
    }
    reals = {name: array("f") for name in ("advantages", "weights", "logprobs", "temperatures")}
    for index, document in enumerate(documents):
        prompt, choice = document["prompt_token_ids"], document["choices"][0]
        if index % n == 0:
            first = len(columns["tokens"])
            columns["tokens"].extend(prompt)
            columns["parents"].extend([-1, *range(first, first + len(prompt) - 1)])
            columns["positions"].extend(range(len(prompt)))
            root = len(columns["tokens"]) - 1
        node = root
        for place, token in enumerate(choice["token_ids"]):
            columns["nodes"].append(node)
            columns["targets"].append(token)
            columns["calls"].append(index)
            reals["advantages"].append(1.0 if index % 2 else -1.0)
            reals["weights"].append(1.0)
            reals["logprobs"].append(choice["logprobs"]["content"][place]["logprob"])
            reals["temperatures"].append(1.0)
            if place < len(choice["token_ids"]) - 1:
                columns["tokens"].append(token)
                columns["parents"].append(node)
                columns["positions"].append(len(prompt) + place)
                node = len(columns["tokens"]) - 1
    return Batch(
        policy="p",
        step=0,
        **columns,
        **reals,
        call_ids=tuple(map(str, range(len(documents)))),
        versions=(0,) * len(documents),
        agents=("writer",) * len(documents),
        groups=array("i", [index // n for index in range(len(documents))]),
    )


@pytest.mark.parametrize(("options", "tolerance"), CONFIGURATIONS)
async def test_trained_logprobs_are_the_served_ones(
    model: str, options: dict[str, Any], tolerance: float
) -> None:
    async with running(model, **options) as engine:
        before = await engine.fingerprint("p")
        documents = await groups(engine, count=4, n=4, max_tokens=24)
        update = await engine.update(batch_of(documents, n=4))
        assert update.metrics["logprob_error_max"] < tolerance
        assert update.metrics["ratio_mean"] == pytest.approx(1.0, abs=tolerance)
        assert await engine.fingerprint("p") != before
        again = await ask(engine, "after", max_tokens=4)
        assert again["system_fingerprint"] == "p@1"


async def test_a_seed_fixes_the_answer_whatever_the_batch(model: str) -> None:
    async with running(model, dtype="float32", deterministic=True) as engine:
        alone = await ask(engine, "hello", seed=1, max_tokens=16)
        together = await asyncio.gather(
            *(ask(engine, f"other {i}", seed=i, max_tokens=20) for i in range(30)),
            ask(engine, "hello", seed=1, max_tokens=16),
        )
    assert together[-1]["choices"][0] == alone["choices"][0]


async def test_weights_survive_saving(model: str, tmp_path: Path) -> None:
    async with running(model) as engine:
        documents = await groups(engine, count=2, n=4, max_tokens=8)
        await engine.update(batch_of(documents, n=4))
        await engine.save("p", str(tmp_path))
        saved = await engine.fingerprint("p")
        await engine.update(batch_of(documents, n=4))
        await engine.load("p", str(tmp_path), version=1)
        assert await engine.fingerprint("p") == saved


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_speed(model: str, dtype: str) -> None:
    """Measure 16 groups of 8 answers of 15 tokens, and an update on them."""
    if DEVICE == "cpu" and dtype == "bfloat16":
        pytest.skip("measured on a GPU only")
    async with running(model, dtype=dtype, max_batch_size=128) as engine:
        for _ in range(3):
            started = time.perf_counter()
            documents = await groups(engine, count=16, n=8, max_tokens=15)
            generated_s = time.perf_counter() - started
            update = await engine.update(batch_of(documents, n=8))
    tokens = sum(len(document["choices"][0]["token_ids"]) for document in documents)
    name = (
        torch.cuda.get_device_name() if DEVICE == "cuda" else f"{torch.get_num_threads()} threads"
    )
    record(
        dtype,
        {
            "device": f"{DEVICE}: {name}",
            "sampled_tokens": tokens,
            "generation_s": round(generated_s, 4),
            "tokens_per_s": round(tokens / generated_s),
            "update_s": round(update.metrics["update_s"], 4),
        },
    )
    assert tokens > 16 * 8 * 7


def record(name: str, figures: dict[str, Any]) -> None:
    """Add figures to the file that ``AGL_MEASUREMENTS`` names."""
    target = os.environ.get("AGL_MEASUREMENTS")
    if target is None:
        return
    path = Path(target)
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, name: figures}, indent=2) + "\n")
