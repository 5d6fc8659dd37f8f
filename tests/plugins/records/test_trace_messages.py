"""``agl trace --messages``: what agents, models and tools said, safe on a terminal."""

import base64
import json

import msgspec
import pytest
from agl_testing.attempts import ScriptedAttempt

from agl_core.types import Choice, Failure, FailureKind, SpanKind
from tests.plugins.records.stored import in_thread, scripted, store_run


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path / "agl_runs" / "run"


async def test_messages_show_prompts_and_answers_whole(agl, run_dir):
    """G9: what a call was asked and what it answered, on request."""
    script = ScriptedAttempt()
    asked = {"name": "lookup", "arguments": '{"item": "lamp"}'}
    script.call(
        "writer",
        [1],
        [2],
        alias="wolf",
        messages=[
            {"role": "system", "content": "Be brief. " * 30},
            {
                "role": "user",
                "content": [{"type": "text", "text": "[bold]Hi"}, {"type": "image_url"}],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"function": asked}, {"id": 3}, 4],
            },
            {"role": "tool", "content": {"price": 3}},
            {"content": "\x1b[31mred"},
        ],
        choices=[
            Choice(text="first\nsecond", reasoning="Let me see.", token_ids=[2]),
            Choice(index=1, tool_calls=[{"function": asked}], token_ids=[3]),
        ],
    )
    await store_run(run_dir, script)

    plain = await in_thread(agl, "trace", run_dir)
    result = await in_thread(agl, "trace", run_dir, "--messages")

    assert "Be brief." not in plain.stdout
    assert "llm writer (wolf) 1+2 tokens" in plain.stdout
    assert result.exit_code == 0, result.stderr
    lines = [line.strip("│├└─ ") for line in result.stdout.splitlines()]
    said = "\n".join(lines)
    assert ("Be brief. " * 30).strip() in " ".join(said.split("\n"))
    for line in (
        "user: [bold]Hi [image_url]",
        '-> lookup({"item": "lamp"})',
        '-> {"id":3}',
        'tool: {"price":3}',
        "?: \\x1b[31mred",
        "answer 0, thinking: 11 characters (--thinking shows them)",
        "answer 0: first",
        "second",
        "answer 1:",
    ):
        assert line in lines, (line, said)
    assert lines.count('-> lookup({"item": "lamp"})') == 2


@pytest.fixture
def said(agl, run_dir):
    """Store calls of the writer and return the lines that a command shows of them."""

    async def lines(*arguments, **call):
        if call:
            script = ScriptedAttempt()
            script.call("writer", [1], [2], **call)
            await store_run(run_dir, script)
        shown = await in_thread(agl, "trace", run_dir, *arguments)
        assert shown.exit_code == 0, shown.stderr
        return [line.strip("│├└─ ") for line in shown.stdout.splitlines()]

    return lines


async def test_thinking_is_folded_until_it_is_asked_for(said):
    history = [
        {"role": "assistant", "content": "<think>Old thoughts.</think>Before."},
        {"role": "assistant", "content": "Again.", "reasoning_content": "Apart."},
    ]

    folded = await said(
        "--messages",
        messages=history,
        choices=[Choice(text="<think>Hm.</think>Now.", token_ids=[2])],
    )
    shown = await said("--thinking")

    assert "assistant, thinking: 13 characters (--thinking shows them)" in folded
    assert not [line for line in folded if "thoughts" in line or "Apart" in line or "Hm" in line]
    for line in ("assistant: Before.", "assistant: Again.", "answer: Now."):
        assert line in folded
        assert line in shown
    assert "assistant, thinking: Old thoughts." in shown
    assert "assistant, thinking: Apart." in shown
    assert "answer, thinking: Hm." in shown


async def test_images_and_audio_are_named_with_their_size(said):
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (640).to_bytes(4) + (480).to_bytes(4)
    png = base64.b64encode(head + bytes(3048)).decode()
    other = base64.b64encode(bytes(1536)).decode()
    parts = [
        {"type": "text", "text": "See"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png}"}},
        {"type": "image_url", "image_url": {"url": "https://host/a.png"}},
        {"type": "input_audio", "input_audio": {"data": other, "format": "wav"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": other}},
        {"type": "image_url", "image_url": "data:image/png;base64,\u05d0"},
    ]

    shown = await said("--messages", messages=[{"role": "user", "content": parts}])

    assert (
        "user: See [image_url image/png 640x480 3.0 KiB] [image_url https://host/a.png] "
        "[input_audio wav 1.5 KiB] [image image/jpeg 1.5 KiB] [image_url image/png 0.0 KiB]"
    ) in shown


async def test_texts_of_any_script_and_any_character_are_safe(said):
    hebrew = "\u05e9\u05dc\u05d5\u05dd"
    texts = ["a\x00b\x1b[2J\x9b\x7f", "\u202egnp.exe", "lone \ud800", "\u3000\u4f60 \u200d", hebrew]
    messages = [{"role": f"r{at}", "content": text} for at, text in enumerate(texts)]

    shown = await said("--messages", messages=messages, choices=[Choice(text=hebrew)])

    assert r"r0: a\x00b\x1b[2J\x9b\x7f" in shown
    assert r"r1: \u202egnp.exe" in shown
    assert r"r2: lone \ud800" in shown
    assert "r3: \u3000\u4f60 \u200d" in shown
    assert f"\u2068r4: {hebrew}\u2069" in shown
    assert f'"\u2068{hebrew}\u2069"' in "\n".join(shown)
    assert not [line for line in shown if "\x1b" in line or "\u202e" in line]


async def test_long_texts_fit_the_width_and_end(said, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    long = [
        {"role": "user", "content": "word " * 40},
        {"role": "tool", "content": "x" * 30_000},
    ]

    shown = await said("--messages", messages=long)

    assert max(map(len, shown)) <= 60
    assert "... 10,000 more characters (--json has them)" in shown


async def test_a_call_is_found_by_its_id_with_what_it_was_rewarded(agl, run_dir):
    script = scripted()
    wanted = next(span.call_id for span in script.spans if span.agent == "writer")
    await store_run(run_dir, script)
    await store_run(run_dir, ScriptedAttempt(), count=25, first=1)

    shown = (await in_thread(agl, "trace", run_dir, "--call", wanted)).stdout
    (data,) = json.loads(
        (await in_thread(agl, "trace", run_dir, "--call", wanted, "--json", "-")).stdout
    )
    other = await in_thread(agl, "trace", run_dir, "--call", wanted, "--rollout", "ro_1")

    assert f"call: {wanted}" in shown
    assert "reward style +0.250" in shown
    assert "planner" not in shown
    assert {span["kind"] for span in data["spans"]} == {"llm", "reward"}
    assert other.exit_code == 2
    assert f"no model call '{wanted}' in rollout 'ro_1'" in other.stderr


async def test_tool_results_errors_and_cuts_are_shown_whole(agl, run_dir):
    script = ScriptedAttempt()
    long = "so long " * 30
    given = {"gen_ai.tool.call.arguments": {"a": 1}, "gen_ai.tool.call.result": f"{long}end"}
    cut = {"budget": 512, "tokens_before": 900, "tokens_after": 500, "messages_cut": 3}
    script._keep(script._span(SpanKind.TOOL, "lookup", attributes=given))
    script._keep(
        script._span(SpanKind.MESSAGE, "agl.prompt_cut", attributes={"agl.prompt_cut": cut})
    )
    script._keep(
        msgspec.structs.replace(
            script._span(SpanKind.TOOL, "broken\x1b"), status="error", error=f"{long}last"
        )
    )
    script.call("writer", [1], [2], complete=False, error=f"{long}refused", status_code=400)
    failure = Failure(
        kind=FailureKind.AGENT, message="broke", traceback="File x\nValueError: broke"
    )
    await store_run(run_dir, script, failure=failure)

    brief = (await in_thread(agl, "trace", run_dir)).stdout
    shown = (await in_thread(agl, "trace", run_dir, "--messages")).stdout

    lines = [line.strip("│├└─ ") for line in shown.splitlines()]
    assert 'arguments: {"a":1}' in lines
    for end in ("end", "last", "refused", "ValueError: broke"):
        assert end in shown
        assert end == "refused" or end not in brief
    assert (
        "prompt cut to a budget of 512 tokens: 900 -> 500 tokens, "
        "3 messages and 0 characters left out"
    ) in brief
    assert "\x1b" not in brief + shown


async def test_what_was_answered_in_no_text_is_shown_too(agl, run_dir):
    """C13: refusals, spoken answers and the older form of a tool call, also in the history."""
    script = ScriptedAttempt()
    older = {"name": "lookup", "arguments": "{}"}
    script.call(
        "writer",
        [1],
        [2],
        messages=[
            {"role": "assistant", "content": None, "function_call": older},
            {"role": "assistant", "content": None, "refusal": "Not that."},
            {"role": "\x1b[31muser", "content": "?"},
        ],
        choices=[
            Choice(refusal="I will not.", token_ids=[2]),
            Choice(index=1, audio="Said aloud.", token_ids=[2]),
            Choice(index=2, function_call=older, token_ids=[2]),
        ],
    )
    await store_run(run_dir, script)

    shown = (await in_thread(agl, "trace", run_dir, "--messages")).stdout

    lines = [line.strip("│├└─ ") for line in shown.splitlines()]
    for line in (
        "assistant: Not that.",
        "\\x1b[31muser: ?",
        "answer 0, refusal: I will not.",
        "answer 1, audio: Said aloud.",
        "answer 2:",
    ):
        assert line in lines, (line, lines)
    assert lines.count("-> lookup({})") == 2
    assert "answer 0:" not in lines
    assert "answer 1:" not in lines
