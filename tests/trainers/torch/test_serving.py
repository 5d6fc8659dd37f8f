"""What the engine answers: exact tokens and log-probabilities in OpenAI's and vLLM's places."""

from __future__ import annotations

import asyncio
import json
import math

import pytest

from agl_core.errors import EngineError
from agl_core.interfaces import RAW_PROMPT
from agl_core.types import Policy

PROMPTS = ["a", "hello", "the same beginning, one end", "the same beginning, another"]


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.6])
async def test_logprobs_are_those_of_the_model(serve, recompute, model_path, temperature):
    client = await serve()
    replies = await client.ask_many(PROMPTS, n=3, temperature=temperature, max_tokens=12)
    for reply in replies:
        assert len(reply.answers) == 3
        for answer in reply.answers:
            assert len(answer.tokens) == len(answer.logprobs)
            expected = recompute(model_path, reply.prompt, answer.tokens, temperature=temperature)
            assert answer.logprobs == pytest.approx(expected, abs=2e-5)


async def test_prompt_ids_are_transformers_own(serve, tokenizer):
    client = await serve()
    reply = await client.ask("héllo", max_tokens=1)
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "héllo"}], add_generation_prompt=True, tokenize=False
    )
    assert reply.prompt == tokenizer(rendered, add_special_tokens=False)["input_ids"]


async def test_a_stream_says_what_a_document_says(serve):
    client = await serve()
    for seed in range(8):
        fields = {"seed": seed, "n": 2, "max_tokens": 24, "top_logprobs": 2}
        whole = await client.ask("hello", **fields)
        stream = await client.ask(
            "hello", stream=True, stream_options={"include_usage": True}, **fields
        )
        assert stream.answers == whole.answers
        assert stream.prompt == whole.prompt
        assert "prompt_token_ids" not in stream.chunks[1]
        assert stream.chunks[-1]["choices"] == []
        assert stream.chunks[-1]["usage"] == whole.document["usage"]
        assert len({chunk["id"] for chunk in stream.chunks}) == 1


async def test_a_seed_fixes_the_tokens_and_choices_differ(serve):
    client = await serve(prefix_tokens=0)
    first = await client.ask(seed=5, n=3, max_tokens=20)
    again = await client.ask(seed=5, n=3, max_tokens=20)
    other = await client.ask(seed=6, n=3, max_tokens=20)
    tokens = [answer.tokens for answer in first.answers]
    assert tokens == [answer.tokens for answer in again.answers]
    assert tokens != [answer.tokens for answer in other.answers]
    assert len({tuple(answer) for answer in tokens}) == 3


async def test_without_a_seed_answers_differ(serve):
    client = await serve()
    replies = await client.ask_many(["same"] * 4, max_tokens=20)
    assert len({tuple(reply.answers[0].tokens) for reply in replies}) == 4


async def test_greedy_takes_the_likeliest(serve):
    client = await serve()
    reply = await client.ask(temperature=0, max_tokens=10, top_logprobs=3)
    for logprob, top in zip(reply.answers[0].logprobs, reply.answers[0].tops, strict=True):
        assert len(top) == 3
        assert logprob == top[0]["logprob"] == max(entry["logprob"] for entry in top)


async def test_top_p_keeps_the_nucleus_and_reports_unrestricted_logprobs(
    serve, recompute, model_path
):
    client = await serve()
    reply = await client.ask(top_p=1e-6, max_tokens=10, n=2)
    first, second = reply.answers
    assert first.tokens == second.tokens
    expected = recompute(model_path, reply.prompt, first.tokens)
    assert first.logprobs == pytest.approx(expected, abs=2e-5)
    assert max(first.logprobs) < -0.1


async def test_answers_join_and_leave_a_running_batch(serve, recompute, model_path):
    client = await serve(max_batch_size=3)
    lengths = [3, 25, 9, 14, 1, 30, 8]
    replies = await asyncio.gather(*(client.ask("x" * n, max_tokens=n, seed=n) for n in lengths))
    for length, reply in zip(lengths, replies, strict=True):
        answer = reply.answers[0]
        assert len(answer.tokens) == length or answer.finish == "stop"
        expected = recompute(model_path, reply.prompt, answer.tokens)
        assert answer.logprobs == pytest.approx(expected, abs=2e-5)


async def test_a_long_prompt_beside_short_ones_stays_exact(serve, recompute, model_path):
    client = await serve()
    contents = ["x" * 400, "short", "short, too", "x" * 390 + "y"]
    for _ in range(2):  # the second time from remembered prompts
        for reply in await client.ask_many(contents, max_tokens=6):
            answer = reply.answers[0]
            expected = recompute(model_path, reply.prompt, answer.tokens)
            assert answer.logprobs == pytest.approx(expected, abs=3e-5)


async def test_memory_bounds_the_batch_without_losing_answers(serve):
    client = await serve(kv_tokens=100)
    replies = await client.ask_many(["hello"] * 6, max_tokens=20, seed=1)
    assert {tuple(reply.answers[0].tokens) for reply in replies} == {
        tuple(replies[0].answers[0].tokens)
    }


async def test_answers_outlive_a_neighbour_that_makes_the_room_tight(
    run_engine, client, recompute, model_path, wait_until, held
):
    """Two long answers under way, and a short prompt that just fits beside them."""
    async with run_engine([Policy(name="p", model=model_path)], kv_tokens=3 * 256) as engine:
        asker = client(engine, "p")
        long = asyncio.create_task(asker.ask("x" * 150, n=2, max_tokens=60, seed=1, stream=True))
        lane = engine._worker.lanes["p"]
        await wait_until(lambda: lane._rows and lane._rows[0].tokens)
        asking = asyncio.create_task(asker.ask("y", max_tokens=4, seed=2))
        await asyncio.sleep(0)
        held.set()
        short = await asking
        assert not long.done()
        for reply in (short, await long):
            for answer in reply.answers:
                expected = recompute(model_path, reply.prompt, answer.tokens)
                assert answer.logprobs == pytest.approx(expected, abs=2e-5)
        cache = lane._decoder._cache
        assert cache.slots * cache.length <= 3 * 256


async def test_max_tokens_is_cut_to_the_context(serve):
    client = await serve(max_model_len=64)
    reply = await client.ask("x" * 30, max_tokens=500, logit_bias={})
    answer = reply.answers[0]
    assert len(reply.prompt) + len(answer.tokens) == 64 or answer.finish == "stop"


async def test_a_prompt_beyond_the_context_is_refused_as_openai_does(serve):
    client = await serve(max_model_len=64)
    reply = await client.ask("x" * 64)
    assert reply.status == 400
    error = reply.document["error"]
    assert error["code"] == "context_length_exceeded"
    assert "64" in error["message"]


async def test_a_prompt_is_counted_as_it_will_be_read(serve):
    client = await serve(max_model_len=256)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    for fields in ({}, {"tools": tools}):
        reply = await client.ask("héllo", max_tokens=1, **fields)
        body = {"messages": [{"role": "user", "content": "héllo"}], **fields}
        counted = await client.backend.count_tokens(json.dumps(body).encode())
        assert (counted.tokens, counted.limit) == (len(reply.prompt), 256)
    for refused in (b"{", b"{}", b'{"messages": [{"content": "no role"}]}'):
        with pytest.raises(ValueError, match=r"JSON|messages"):
            await client.backend.count_tokens(refused)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("frequency_penalty", 0.5),
        ("presence_penalty", 1),
        ("logit_bias", {"5": 1}),
        ("top_k", 5),
        ("response_format", {"type": "json_object"}),
        ("tool_choice", "required"),
        ("audio", {"voice": "x"}),
        ("made_up", 1),
        ("temperature", -1),
        ("n", 0),
        ("top_p", 0),
        ("max_tokens", 0),
        ("messages", []),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]),
        ("messages", [{"content": "no role"}]),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(serve, field, value):
    client = await serve()
    reply = await client.ask(**{field: value})
    assert reply.status == 400
    assert field in reply.document["error"]["message"]
    assert reply.document["error"]["param"] == field


async def test_neutral_values_are_accepted(serve):
    client = await serve()
    reply = await client.ask(
        frequency_penalty=0, presence_penalty=0.0, top_k=-1, response_format={"type": "text"},
        user="me", metadata={}, max_completion_tokens=2, stop=None, tool_choice="auto",
    )  # fmt: skip
    assert reply.status == 200
    assert len(reply.answers[0].tokens) <= 2


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b'"x"'])
async def test_a_body_that_is_no_request_is_refused(serve, body):
    client = await serve()
    reply = await client.backend.chat(body, headers={}, timeout_s=5)
    assert reply.status == 400
    assert "error" in json.loads(b"".join([part async for part in reply.body()]))


async def test_stop_strings_cut_the_text_but_not_the_tokens(serve):
    client = await serve()
    free = await client.ask(seed=3, max_tokens=40)
    text = free.answers[0].content
    stop = next(c for c in text[3:] if c.isascii() and c.isprintable())
    for stream in (False, True):
        cut = await client.ask(seed=3, max_tokens=40, stop=[stop, "never there"], stream=stream)
        answer = cut.answers[0]
        assert answer.content == text[: text.index(stop)]
        assert answer.finish == "stop"
        assert answer.tokens == free.answers[0].tokens[: len(answer.tokens)]
        assert len(answer.tokens) < len(free.answers[0].tokens)


async def test_closing_a_reply_frees_its_slot(model_path, run_engine, held):
    async with run_engine([Policy(name="p", model=model_path)]) as engine:
        body = json.dumps(
            {"messages": [{"role": "user", "content": "x"}], "stream": True, "n": 4}
        ).encode()
        reply = await engine.backend("p").chat(body, headers={}, timeout_s=60)
        events = reply.body()
        await events.__anext__()
        assert engine._worker.lanes["p"].busy
        await reply.close()
        await events.aclose()
        held.set()
        await engine.fingerprint("p")  # one turn of the engine's thread
        await engine.fingerprint("p")
        assert not engine._worker.lanes["p"].busy


async def test_cancelling_a_waiting_caller_frees_its_slot(model_path, run_engine, wait_until, held):
    async with run_engine([Policy(name="p", model=model_path)]) as engine:
        body = json.dumps({"messages": [{"role": "user", "content": "x"}], "n": 8}).encode()
        task = asyncio.create_task(engine.backend("p").chat(body, headers={}, timeout_s=60))
        await wait_until(lambda: engine._worker.lanes["p"].busy)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        held.set()
        await engine.fingerprint("p")
        await engine.fingerprint("p")
        assert not engine._worker.lanes["p"].busy


async def test_a_time_limit_ends_a_request(serve):
    client = await serve()
    for stream in (False, True):
        with pytest.raises(EngineError, match="time limit"):
            await client.ask(n=64, max_tokens=400, stream=stream, timeout_s=0.05)


async def test_stopping_the_engine_ends_requests_with_an_error(
    model_path, run_engine, wait_until, held
):
    async with run_engine([Policy(name="p", model=model_path)]) as engine:
        body = json.dumps({"messages": [{"role": "user", "content": "x"}], "n": 8}).encode()
        task = asyncio.create_task(engine.backend("p").chat(body, headers={}, timeout_s=60))
        await wait_until(lambda: engine._worker.lanes["p"].busy)
        asyncio.get_running_loop().call_soon(held.set)  # once the engine has been told to stop
    with pytest.raises(EngineError, match="stopped"):
        await task
    with pytest.raises(EngineError, match="not running"):
        await engine.backend("p").chat(body, headers={}, timeout_s=60)


async def test_a_failing_pass_fails_its_requests_only(serve, monkeypatch):
    client = await serve()
    from agl_torch.serving import lane

    sample = lane.sample
    monkeypatch.setattr(lane, "sample", lambda *_: 1 / 0)
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        await client.ask()
    monkeypatch.setattr(lane, "sample", sample)
    assert (await client.ask(max_tokens=2)).status == 200


async def test_many_loops_may_ask_at_once(serve):
    client = await serve()
    want = (await client.ask(seed=1, max_tokens=8)).answers

    def elsewhere():
        return asyncio.run(client.ask(seed=1, max_tokens=8)).answers

    found = await asyncio.gather(*(asyncio.to_thread(elsewhere) for _ in range(3)))
    for answers in found:
        assert answers[0].tokens == want[0].tokens


async def test_logprobs_sum_to_one_over_the_top(serve):
    client = await serve()
    reply = await client.ask(max_tokens=1, top_logprobs=20)
    top = reply.answers[0].tops[0]
    assert 0 < sum(math.exp(entry["logprob"]) for entry in top) < 1


async def test_a_raw_prompt_is_encoded_as_it_was_written(serve, tokenizer):
    client = await serve()
    text = "<|im_start|>user\nhello"
    raw = {
        "chat_template": RAW_PROMPT,
        "add_generation_prompt": False,
        "add_special_tokens": True,
    }
    reply = await client.ask(text, max_tokens=3, **raw)
    assert reply.prompt == tokenizer(text)["input_ids"]
    assert tokenizer.convert_tokens_to_ids("<|im_start|>") in reply.prompt
    assert reply.prompt != (await client.ask(text, max_tokens=1)).prompt
    for wrong in (
        {"chat_template": "{{ messages }}"},
        {**raw, "add_generation_prompt": True},
        {"add_special_tokens": True},
        {**raw, "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
    ):
        refused = await client.ask(text, **wrong)
        assert refused.status == 400
