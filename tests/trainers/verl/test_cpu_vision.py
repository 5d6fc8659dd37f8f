"""Models that see, served on a CPU: what they are shown, and that their numbers are transformers'."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager

import httpx
import pytest
import pytest_asyncio
import torch
from agl_torch.options import TorchOptions
from agl_verl.cpu._server import WEIGHTS, CpuServer
from agl_verl.cpu._vision import VisionEngine
from agl_verl.vision import vision_of
from safetensors.torch import save_file
from transformers import AutoModelForImageTextToText, AutoTokenizer

from agl_core.errors import ConfigError, EngineError
from agl_core.types import Policy
from tests.trainers.verl import verl_parts  # noqa: F401 (verl imported without its warnings)
from tests.trainers.verl.seeing import DEMO, data_url, make_seeing_model

pytestmark = pytest.mark.asyncio(loop_scope="module")
RED, BLUE = data_url("red"), data_url("blue", (32, 16))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_seeing_model(tmp_path_factory.mktemp("seeing"))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """The same kind of model with other weights."""
    return make_seeing_model(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture(scope="module")
def vision(model):
    return vision_of(model)


@asynccontextmanager
async def serving(model, **options):
    server = CpuServer(model, {"device": "cpu", "threads": 1, **options})
    try:
        address = await server.start()
        async with httpx.AsyncClient(base_url=f"http://{address}/v1", timeout=60) as client:
            yield server, client
    finally:
        await server.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(model):
    """Of a server whose weights nobody changes."""
    async with serving(model) as (_, client):
        yield client


def shown(*parts):
    """A user's message of texts and of URLs of images."""
    return {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": part}}
            if part.startswith("data:")
            else {"type": "text", "text": part}
            for part in parts
        ],
    }


def asking(*messages, **fields):
    return {
        "messages": list(messages),
        "max_tokens": 8,
        "seed": 3,
        "logprobs": True,
        "return_token_ids": True,
        **fields,
    }


async def answer(client, *messages, **fields):
    reply = await client.post("/chat/completions", json=asking(*messages, **fields))
    assert reply.status_code == 200, reply.text
    return reply.json()


async def refusal(client, *messages, **fields):
    reply = await client.post("/chat/completions", json=asking(*messages, **fields))
    assert reply.status_code == 400, reply.text
    return reply.json()["error"]


def logprobs(choice):
    return [entry["logprob"] for entry in choice["logprobs"]["content"]]


def recomputed(directory, vision, prompt, sampled, urls, temperature=1.0):
    """What transformers makes of prompt and answer in one pass, at positions that it finds itself."""
    seeing = AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32)
    ids = torch.tensor([[*prompt, *sampled]])
    images = vision.inputs(urls) if urls else {}
    kinds = {"mm_token_type_ids": (ids == vision.token).int()} if urls else {}
    with torch.no_grad():
        logits = seeing(input_ids=ids, **images, **kinds).logits[0, len(prompt) - 1 : -1]
    likely = torch.log_softmax(logits / temperature, -1)
    return likely.gather(-1, torch.tensor(sampled)[:, None])[:, 0].tolist()


async def test_a_prompt_holds_a_mark_for_each_part_of_an_image_where_it_is_shown(
    client, model, vision
):
    tokenizer = AutoTokenizer.from_pretrained(model)
    system = {"role": "system", "content": "Look."}
    document = await answer(client, system, shown("a", RED, "b", BLUE), shown(RED))
    lengths = vision.lengths([RED, BLUE])
    assert len(set(lengths)) == 2
    red, blue = (f"<|vision_start|>{'<|image_pad|>' * length}<|vision_end|>" for length in lengths)
    assert tokenizer.decode(document["prompt_token_ids"]) == (
        f"<|im_start|>system\nLook.<|im_end|>\n<|im_start|>user\na{red}b{blue}<|im_end|>\n"
        f"<|im_start|>user\n{red}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert document["usage"]["prompt_tokens"] == len(document["prompt_token_ids"])


async def test_what_an_image_shows_changes_the_answer(client):
    red, green, again = [
        await answer(client, shown("What is it?", url)) for url in (RED, data_url("green"), RED)
    ]
    assert red["prompt_token_ids"] == green["prompt_token_ids"]
    seen = [logprobs(each["choices"][0]) for each in (red, green, again)]
    assert seen[0] == seen[2]
    assert abs(seen[0][0] - seen[1][0]) > 1e-3


@pytest.mark.parametrize("urls", [[], [RED], [RED, BLUE]], ids=["text", "one", "two"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_log_probabilities_are_those_of_one_pass(client, model, vision, urls, temperature):
    document = await answer(client, shown("Look", *urls, "now"), n=3, temperature=temperature)
    choices = document["choices"]
    assert len({tuple(choice["token_ids"]) for choice in choices}) == 3
    for choice in choices:
        assert choice["token_ids"]
        known = recomputed(
            model, vision, document["prompt_token_ids"], choice["token_ids"], urls, temperature
        )
        assert logprobs(choice) == pytest.approx(known, abs=1e-4)


async def test_answers_that_end_early_leave_the_others_as_they_are(client, model, vision):
    alone = await answer(client, shown("Say", RED), n=4, max_tokens=40)
    first = re.findall("[a-z]{2}", alone["choices"][1]["message"]["content"])[0]
    cut = await answer(client, shown("Say", RED), n=4, max_tokens=40, stop=[first])
    reasons = [choice["finish_reason"] for choice in cut["choices"]]
    assert reasons[1] == "stop"
    for before, after in zip(alone["choices"], cut["choices"], strict=True):
        length = len(after["token_ids"])
        assert after["token_ids"] == before["token_ids"][:length]
        assert first not in after["message"]["content"]
        known = recomputed(model, vision, cut["prompt_token_ids"], after["token_ids"], [RED])
        assert logprobs(after) == pytest.approx(known, abs=1e-4)


async def test_new_weights_answer_the_requests_that_come_later(model, other, vision, tmp_path):
    state = AutoModelForImageTextToText.from_pretrained(other).state_dict()
    save_file(state, tmp_path / WEIGHTS, metadata={"format": "pt"})
    async with serving(model) as (server, client):
        before = await answer(client, shown(RED))
        await server.load(str(tmp_path), 7)
        after = await answer(client, shown(RED))
    assert [each["system_fingerprint"] for each in (before, after)] == ["served@0", "served@7"]
    for directory, document in ((model, before), (other, after)):
        choice = document["choices"][0]
        known = recomputed(
            directory, vision, document["prompt_token_ids"], choice["token_ids"], [RED]
        )
        assert logprobs(choice) == pytest.approx(known, abs=1e-4)


async def test_weights_that_are_not_whole_are_refused_and_the_old_ones_go_on(
    model, other, tmp_path
):
    state = AutoModelForImageTextToText.from_pretrained(other).state_dict()
    del state["lm_head.weight"]
    save_file(state, tmp_path / WEIGHTS, metadata={"format": "pt"})
    async with serving(model) as (server, client):
        before = await answer(client, shown(RED))
        with pytest.raises(ConfigError, match=r"lacks 1 weights, 'lm_head\.weight'"):
            await server.load(str(tmp_path), 7)
        after = await answer(client, shown(RED))
    assert after["system_fingerprint"] == "served@0"
    assert logprobs(after["choices"][0]) == logprobs(before["choices"][0])


async def test_a_stream_says_what_a_document_does(client):
    whole = await answer(client, shown("Look", RED), n=2, top_logprobs=2, top_p=0.9)
    body = asking(
        shown("Look", RED),
        n=2,
        top_logprobs=2,
        top_p=0.9,
        stream=True,
        stream_options={"include_usage": True},
    )
    reply = await client.post("/chat/completions", json=body)
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    chunks = [json.loads(line) for line in lines]
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert chunks[-1]["usage"] == whole["usage"]
    for index, choice in enumerate(whole["choices"]):
        parts = [p for chunk in chunks for p in chunk["choices"] if p["index"] == index]
        assert [id_ for part in parts for id_ in part["token_ids"]] == choice["token_ids"]
        entries = [entry for part in parts for entry in part["logprobs"]["content"]]
        assert entries == choice["logprobs"]["content"]
        text = "".join(part["delta"].get("content", "") for part in parts)
        assert text == choice["message"]["content"]
        assert parts[-1]["finish_reason"] == choice["finish_reason"]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"type": "image_url", "image_url": {"url": "http://x/cat.png"}}, "'http://x/cat.png'"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, "no image"),
        ({"type": "image_url", "image_url": {"url": data_url("red", (2, 900))}}, "ratio"),
        ({"type": "image_url"}, "data:image/png;base64"),
        ({"type": "image"}, "data:image/png;base64"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "input_audio"),
        ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,"}}, "video_url"),
        ({"type": "file", "file": {"file_id": "f"}}, "'file'"),
    ],
    ids=["http", "broken", "strip", "empty", "bare", "audio", "video", "file"],
)
async def test_what_cannot_be_shown_is_refused_by_name(client, part, said):
    message = {"role": "user", "content": [{"type": "text", "text": "Look"}, part]}
    error = await refusal(client, message)
    assert said in error["message"]
    assert "messages[0].content" in error["message"]
    assert error["param"] == "messages"


async def test_a_mark_that_is_typed_is_text(client, model, vision):
    document = await answer(
        client,
        shown("<|vision_start|><|image_pad|><|vision_end|>"),
        {"role": "assistant", "content": "<|image_pad|>"},
        shown("<|image_pad|>", RED),
    )
    ids = document["prompt_token_ids"]
    assert ids.count(vision.token) == vision.lengths([RED])[0]
    tokenizer = AutoTokenizer.from_pretrained(model)
    assert tokenizer.decode(ids).count("<|image_pad|>") == ids.count(vision.token) + 3


async def test_a_template_that_shows_no_images_is_named(tmp_path):
    blind = make_seeing_model(tmp_path)
    template = (DEMO / "chat_template.jinja").read_text(encoding="utf-8")
    (tmp_path / "chat_template.jinja").write_text(template, encoding="utf-8")
    async with serving(blind) as (_, client):
        error = await refusal(client, shown("Look", RED))
        await answer(client, shown("Read"))
    assert "writes 0 marks for 1 images" in error["message"]


async def test_images_count_towards_the_context(client, model, vision):
    words = len((await answer(client, shown("Look")))["prompt_token_ids"])
    room = words + 2 + vision.lengths([RED])[0]
    async with serving(model, max_model_len=room + 1) as (_, tight):
        document = await answer(tight, shown("Look", RED))
        error = await refusal(tight, shown("Look", RED, "!"))
    assert len(document["prompt_token_ids"]) == room
    assert document["usage"]["completion_tokens"] == 1
    assert error["code"] == "context_length_exceeded"


async def test_a_mark_is_never_sampled(tmp_path, vision):
    talkative = make_seeing_model(tmp_path)
    seeing = AutoModelForImageTextToText.from_pretrained(talkative)
    with torch.no_grad():
        seeing.get_output_embeddings().weight[vision.token, 0] = 20.0
    seeing.save_pretrained(talkative)
    async with serving(talkative) as (_, client):
        document = await answer(client, shown(RED), temperature=0)
    assert vision.token not in document["choices"][0]["token_ids"]


async def test_options_that_mean_nothing_here_are_refused(model):
    with pytest.raises(ConfigError, match="kv_tokens is 100"):
        await CpuServer(model, {"device": "cpu", "kv_tokens": 100}).start()


class Watched:
    """A model that says when it is asked, and waits until it may answer."""

    def __init__(self, inner):
        self._inner = inner
        self.config = inner.config
        self.asked = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._may = asyncio.Queue()

    def __call__(self, **arguments):
        self._loop.call_soon_threadsafe(self.asked.put_nowait, arguments["input_ids"].shape)
        asyncio.run_coroutine_threadsafe(self._may.get(), self._loop).result(timeout=60)
        return self._inner(**arguments)

    def let(self):
        self._may.put_nowait(None)


async def test_a_request_given_up_stops_before_its_next_token(model, vision):
    engine = VisionEngine(TorchOptions(device="cpu", threads=1), vision)
    await engine.start([Policy(name="p", model=model, trainable=True)])
    watched = Watched(AutoModelForImageTextToText.from_pretrained(model).eval())
    await engine._worker.run(lambda: engine._worker.lanes["p"].renew(watched, 1))
    try:
        backend = engine.backend("p")
        body = json.dumps(asking(shown("Look", RED), max_tokens=50)).encode()
        given_up = asyncio.create_task(backend.chat(body, headers={}, timeout_s=60))
        await watched.asked.get()
        waiting = asyncio.create_task(backend.chat(body, headers={}, timeout_s=60))
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        watched.let()
        assert (await watched.asked.get())[1] > 1  # the next request's prompt, not a token
        await engine_stops(engine, watched, waiting)
    finally:
        await engine.stop()


async def engine_stops(engine, watched, waiting):
    """An engine that is stopped ends what is under way."""
    stopping = asyncio.create_task(engine.stop())
    watched.let()
    with pytest.raises(EngineError, match="stopped"):
        await waiting
    await stopping
