"""The shipped model is small, knows the wire format, and leaves the writer room to improve."""

import json
import random
import struct
from pathlib import Path

import agl_demo
import pytest
import torch
from agl_demo import _corpus, world
from agl_demo._evaluate import measure
from agl_demo._sft import SftConfig, train
from agl_demo._tokenizer import MARKERS, make_tokenizer, shop_texts
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL = Path(agl_demo.__file__).with_name("model")
USER = {"role": "user", "content": "Hi"}


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()


def render(tokenizer, messages, **options):
    return tokenizer.apply_chat_template(messages, tokenize=False, **options)


def test_model_is_within_its_size(model):
    assert sum(weight.numel() for weight in model.parameters()) <= 4_000_000
    assert sum(file.stat().st_size for file in MODEL.iterdir()) <= 8_000_000
    assert model.config.hidden_size // model.config.num_attention_heads == 64


def test_weights_are_stored_as_bfloat16():
    with (MODEL / "model.safetensors").open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    assert {weight["dtype"] for weight in header.values()} == {"BF16"}


def test_markers_are_single_visible_tokens(tokenizer):
    for marker in MARKERS:
        ids = tokenizer(marker)["input_ids"]
        assert len(ids) == 1
        assert tokenizer.decode(ids, skip_special_tokens=True) == marker
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


@settings(max_examples=200)
@given(st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_categories=["Cc"])))
def test_tokenizer_loses_no_text(tokenizer, text):
    # NFC, the tokenizer's own normal form, leaves this range of code points as it is.
    ids = tokenizer(text, split_special_tokens=True)["input_ids"]
    assert tokenizer.decode(ids) == text


def test_answer_ids_follow_prompt_ids_unchanged(tokenizer):
    rng = random.Random(0)
    for _ in range(200):
        messages, tools, answer = _corpus.example(rng)
        prompt = render(tokenizer, messages, tools=tools or None, add_generation_prompt=True)
        whole = tokenizer(prompt + answer)["input_ids"]
        assert whole == tokenizer(prompt)["input_ids"] + tokenizer(answer)["input_ids"]


def test_shipped_tokenizer_is_the_scripts(tokenizer):
    made = make_tokenizer(shop_texts(0))
    assert made.get_vocab() == tokenizer.get_vocab()
    assert made.chat_template == tokenizer.chat_template


def test_training_repeats_bit_for_bit(tokenizer):
    config = SftConfig(drill_steps=1, steps=1, batch_size=4)
    first, second = (train(tokenizer, config).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_base_is_neither_crippled_nor_finished(model, tokenizer):
    sampled = measure(model, tokenizer, temperature=1.0, count=100)
    greedy = measure(model, tokenizer, temperature=0.0, count=100)
    assert sampled.planner_right >= 0.95
    assert 0.10 <= sampled.writer_right <= 0.45
    assert greedy.writer_right <= 0.8


def test_assistant_turn_renders_as_the_model_writes_it(tokenizer):
    task = world.tasks("train", 1, seed=0)[0]
    messages = _corpus.planner_messages(task)
    options = {"tools": [_corpus.LOOKUP_TOOL]}
    prompt = render(tokenizer, messages, add_generation_prompt=True, **options)
    call = {"name": "lookup", "arguments": json.dumps({"item": task.item})}
    turn = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": call}]}
    rendered = render(tokenizer, [*messages, turn], **options)
    assert rendered == prompt + _corpus.tool_call(task) + "<|im_end|>\n"


@pytest.mark.parametrize("content", [None, "", "Let me see."])
def test_arguments_render_alike_as_string_and_mapping(tokenizer, content):
    arguments = {"city": "Paris é <&>", "days": 2}
    turns = [
        {"role": "assistant", "content": content, "tool_calls": [{"function": function}] * 2}
        for function in (
            {"name": "f", "arguments": arguments},
            {"name": "f", "arguments": json.dumps(arguments, ensure_ascii=False)},
        )
    ]
    mapping, string = (render(tokenizer, [USER, turn]) for turn in turns)
    assert mapping == string
    assert mapping.count('"arguments": {"city": "Paris é <&>", "days": 2}}') == 2


@pytest.mark.parametrize(("arguments", "shown"), [("", "{}"), ("{city", "{city"), (None, "{}")])
def test_odd_arguments_do_not_break_rendering(tokenizer, arguments, shown):
    turn = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "f", "arguments": arguments}}],
    }
    assert f'"arguments": {shown}}}' in render(tokenizer, [USER, turn])


def test_system_messages_stay_where_they_are(tokenizer):
    messages = [
        {"role": "system", "content": "A"},
        USER,
        {"role": "assistant", "content": "Hello"},
        {"role": "system", "content": "B"},
        USER,
    ]
    turns = ["system\nA", "user\nHi", "assistant\nHello", "system\nB", "user\nHi"]
    assert render(tokenizer, messages) == "".join(
        f"<|im_start|>{turn}<|im_end|>\n" for turn in turns
    )


def test_no_default_system_text_appears(tokenizer):
    assert render(tokenizer, [USER]) == "<|im_start|>user\nHi<|im_end|>\n"


@pytest.mark.parametrize(
    "tool",
    [
        _corpus.LOOKUP_TOOL,
        {**_corpus.LOOKUP_TOOL["function"], "description": "Other words", "strict": True},
    ],
    ids=["function wrapper", "bare function"],
)
def test_tools_need_no_system_message_and_no_wording(tokenizer, tool):
    rendered = render(tokenizer, [USER], tools=[tool])
    assert rendered.startswith(
        "<|im_start|>system\n<tools>\nlookup(item)\n</tools><|im_end|>\n<|im_start|>user"
    )


def test_tool_without_parameters_renders(tokenizer):
    tool = {"type": "function", "function": {"name": "now"}}
    assert "\nnow()\n" in render(tokenizer, [USER], tools=[tool])


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_text_parts_render_like_a_string(tokenizer, role):
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert render(tokenizer, [USER, {"role": role, "content": parts}]) == render(
        tokenizer, [USER, {"role": role, "content": "one two"}]
    )


def test_tool_result_is_marked(tokenizer):
    rendered = render(tokenizer, [USER, {"role": "tool", "content": "42", "tool_call_id": "1"}])
    assert "<tool_response>\n42\n</tool_response>" in rendered
