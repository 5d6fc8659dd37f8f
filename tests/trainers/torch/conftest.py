"""A random model of a few thousand weights, its tokenizer, and a client for its engine."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from agl_torch.engine import TorchEngine  # noqa: E402
from agl_torch.losses.cross_entropy import CrossEntropy  # noqa: E402
from agl_torch.models import without_progress_bars  # noqa: E402
from agl_torch.options import TorchOptions  # noqa: E402
from agl_torch.serving import lane  # noqa: E402
from tokenizers import pre_tokenizers  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
)

from agl_core.interfaces import AlgorithmSetup  # noqa: E402
from agl_core.types import Batch, Policy  # noqa: E402

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = ("<tool_call>", "</tool_call>", "<tools>", "</tools>", "<tool_response>")

TEMPLATE = """\
{%- if tools %}{{- '<|im_start|>system\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools><|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>' + message.content + '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n' if message.content or not loop.first }}
{{- '<tool_call>\\n{"name": ' + (call.function.name | tojson) + ', "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


def make_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerBase:
    """One token per byte, three control tokens, and the markers of tool calls."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate([*alphabet, *SPECIAL])},
        merges=[],
        unk_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        pad_token=SPECIAL[0],
        extra_special_tokens=[SPECIAL[1]],
    )
    tokenizer.add_tokens(list(MARKERS))
    tokenizer.chat_template = template
    return tokenizer


def make_model(directory: Path, *, seed: int = 0, layers: int = 2, **config: Any) -> str:
    """Write a random model with its tokenizer; returns the directory."""
    tokenizer = make_tokenizer()
    torch.manual_seed(seed)
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "initializer_range": 0.1,
    }
    with without_progress_bars():
        Qwen2ForCausalLM(Qwen2Config(**{**shape, **config})).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return make_tokenizer()


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def build_model() -> Callable[..., str]:
    return make_model


@pytest.fixture(scope="session")
def build_tokenizer() -> Callable[..., PreTrainedTokenizerBase]:
    return make_tokenizer


@dataclass
class Answer:
    """One choice, put together from a document or from a stream's chunks."""

    content: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[list[dict[str, Any]]] = field(default_factory=list)
    finish: str | None = None


@dataclass
class Reply:
    status: int
    document: dict[str, Any]
    """The body, or a stream's first chunk."""
    prompt: list[int]
    answers: list[Answer]
    chunks: list[dict[str, Any]] = field(default_factory=list)


class Client:
    """Asks one policy of an engine, with token ids and log-probabilities."""

    def __init__(self, engine: TorchEngine, policy: str) -> None:
        self.backend = engine.backend(policy)

    async def ask(self, content: str = "hi", *, timeout_s: float = 60.0, **fields: Any) -> Reply:
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": content}],
            "logprobs": True,
            "return_token_ids": True,
            **fields,
        }
        raw = json.dumps({k: v for k, v in body.items() if v is not ...}).encode()
        reply = await self.backend.chat(raw, headers={}, timeout_s=timeout_s)
        content = b"".join([part async for part in reply.body()])
        await reply.close()
        if body.get("stream") and reply.status == 200:
            return _from_stream(content)
        return _from_document(reply.status, json.loads(content))

    async def ask_many(self, contents: Sequence[str], **fields: Any) -> list[Reply]:
        return await asyncio.gather(*(self.ask(content, **fields) for content in contents))


def _from_document(status: int, document: dict[str, Any]) -> Reply:
    answers = []
    for choice in document.get("choices", []):
        message = choice["message"]
        entries = (choice["logprobs"] or {"content": []})["content"]
        answers.append(
            Answer(
                content=message["content"],
                tool_calls=message.get("tool_calls", []),
                tokens=choice.get("token_ids", []),
                logprobs=[entry["logprob"] for entry in entries],
                tops=[entry["top_logprobs"] for entry in entries],
                finish=choice["finish_reason"],
            )
        )
    return Reply(status, document, document.get("prompt_token_ids", []), answers)


def _from_stream(content: bytes) -> Reply:
    events = [part for part in content.decode().split("\n\n") if part]
    assert events[-1] == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    answers: dict[int, Answer] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            answer = answers.setdefault(choice["index"], Answer())
            delta = choice["delta"]
            if "content" in delta:
                answer.content = (answer.content or "") + delta["content"]
            answer.tool_calls += delta.get("tool_calls", [])
            answer.tokens += choice.get("token_ids", [])
            entries = (choice["logprobs"] or {"content": []})["content"]
            answer.logprobs += [entry["logprob"] for entry in entries]
            answer.tops += [entry["top_logprobs"] for entry in entries]
            answer.finish = choice["finish_reason"] or answer.finish
    ordered = [answers[index] for index in sorted(answers)]
    return Reply(200, chunks[0], chunks[0].get("prompt_token_ids", []), ordered, chunks)


@asynccontextmanager
async def running(
    policies: Sequence[Policy], setup: AlgorithmSetup | None = None, **options: Any
) -> AsyncIterator[TorchEngine]:
    engine = TorchEngine(TorchOptions(device="cpu", threads=1, **options), setup)
    await engine.start(policies)
    try:
        yield engine
    finally:
        await engine.stop()


@pytest.fixture
def run_engine() -> Callable[..., Any]:
    """Context manager: an engine that serves the given policies."""
    return running


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks and threads run until `condition` holds."""
    while not condition():  # noqa: ASYNC110 (the engine's thread tells nobody)
        await asyncio.sleep(0)


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., Awaitable[None]]:
    return until


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Engines wait for it after their first pass: no answer ends before a test is ready."""
    go, passes, sample = threading.Event(), itertools.count(), lane.sample

    def draw(*arguments: Any) -> Any:
        if next(passes):
            go.wait()
        return sample(*arguments)

    monkeypatch.setattr(lane, "sample", draw)
    return go


@pytest.fixture
def client() -> Callable[[TorchEngine, str], Client]:
    return Client


@pytest.fixture
async def serve(model_path: str) -> AsyncIterator[Callable[..., Awaitable[Client]]]:
    """Start an engine with one frozen policy ``p`` and return a client of it."""
    engines: list[TorchEngine] = []

    async def start(**options: Any) -> Client:
        engine = TorchEngine(TorchOptions(device="cpu", threads=1, **options), None)
        engines.append(engine)
        await engine.start([Policy(name="p", model=model_path)])
        return Client(engine, "p")

    yield start
    for engine in engines:
        await engine.stop()


@pytest.fixture(scope="session")
def recompute() -> Callable[..., list[float]]:
    """Log-probabilities of an answer by transformers alone, without any code of the engine."""

    def logprobs(
        model: str, prompt: Sequence[int], answer: Sequence[int], *, temperature: float = 1.0
    ) -> list[float]:
        with without_progress_bars():
            module = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        ids = torch.tensor([[*prompt, *answer]])
        with torch.no_grad():
            logits = module(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        scaled = torch.log_softmax(logits / temperature, -1)
        return scaled[torch.arange(len(answer)), torch.tensor(answer)].tolist()

    return logprobs


@dataclass
class Sampled:
    """One sampled sequence for `batch_of`."""

    prompt: Sequence[int]
    tokens: Sequence[int]
    logprobs: Sequence[float]
    advantage: float = 1.0
    weight: float = 1.0
    temperature: float = 1.0
    group: int = 0
    version: int = 0


def batch_of(samples: Sequence[Sampled], *, policy: str = "p", step: int = 0) -> Batch:
    """Lay samples out as a forest in depth-first order, by a plain trie."""
    trie: dict[int, Any] = {}
    ordered = sorted(range(len(samples)), key=lambda i: [*samples[i].prompt, *samples[i].tokens])
    for index in ordered:
        node = trie
        for token in [*samples[index].prompt, *samples[index].tokens[:-1]]:
            node = node.setdefault(token, {})
    tokens, parents, positions = array("i"), array("i"), array("i")
    places: dict[tuple[int, ...], int] = {}

    def walk(children: dict[int, Any], parent: int, path: tuple[int, ...]) -> None:
        stack = [(children, parent, path)]
        while stack:
            branch, above, prefix = stack.pop()
            if prefix:
                tokens.append(prefix[-1])
                parents.append(above)
                positions.append(len(prefix) - 1)
                places[prefix] = above = len(tokens) - 1
            stack += [(branch[t], above, (*prefix, t)) for t in sorted(branch, reverse=True)]

    walk(trie, -1, ())
    columns: dict[str, array[Any]] = {
        name: array(code)
        for name, code in [
            ("nodes", "i"), ("targets", "i"), ("advantages", "f"), ("weights", "f"),
            ("logprobs", "f"), ("temperatures", "f"), ("calls", "i"),
        ]
    }  # fmt: skip
    for call, sample in enumerate(samples):
        for index, token in enumerate(sample.tokens):
            path = (*sample.prompt, *sample.tokens[:index])
            row = (
                places[tuple(path)], token, sample.advantage, sample.weight,
                sample.logprobs[index], sample.temperature, call,
            )  # fmt: skip
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
    return Batch(
        policy=policy,
        step=step,
        tokens=tokens,
        parents=parents,
        positions=positions,
        **columns,
        call_ids=tuple(f"call-{index}" for index in range(len(samples))),
        versions=tuple(sample.version for sample in samples),
        agents=("writer",) * len(samples),
        groups=array("i", [sample.group for sample in samples]),
    )


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., Batch]:
    return batch_of


@pytest.fixture(scope="session")
def sampled() -> type[Sampled]:
    return Sampled


TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "lookup", "arguments": {"item": "red lamp"}}\n</tool_call>'


@pytest.fixture(scope="session")
def tool_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that has learned to answer "price?" with `CALL`."""
    base = make_model(tmp_path_factory.mktemp("base"), seed=1)
    target = tmp_path_factory.mktemp("tool-model")
    tokenizer = make_tokenizer()
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "price?"}],
        tools=[TOOL],
        add_generation_prompt=True,
        tokenize=False,
    )
    answer = [*tokenizer(CALL)["input_ids"], tokenizer.eos_token_id]
    sample = Sampled(tokenizer(prompt)["input_ids"], answer, [0.0] * len(answer))

    async def train() -> None:
        setup = AlgorithmSetup(name="sft", loss_factory=CrossEntropy, lr=3e-3)
        async with running([Policy(name="p", model=base, trainable=True)], setup) as engine:
            for step in range(200):
                update = await engine.update(batch_of([sample], step=step))
                if update.metrics["loss"] < 0.003:
                    break
            await engine.save("p", str(target), resumable=False)

    asyncio.run(train())
    return str(target)
