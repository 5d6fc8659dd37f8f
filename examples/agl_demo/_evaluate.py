"""Scores of the demo's model before reinforcement learning, without server or agent program."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, Qwen2ForCausalLM

from agl_demo._corpus import LOOKUP_TOOL, planner_messages, writer_messages
from agl_demo.world import reward, score, tasks

MAX_NEW_TOKENS = 40
_TOOL_CALL = re.compile(r"<tool_call>\s*(\{.*\})\s*</tool_call>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Scores:
    """Fractions of held-out tasks at one temperature."""

    temperature: float
    planner_valid: float
    """Answers that parse as one tool call."""
    planner_right: float
    """Answers whose call names the right tool and item."""
    writer_right: float
    writer_parts: dict[str, float]
    """Fractions by part, as in `world.score`."""
    examples: tuple[str, ...]
    """A few of the writer's answers."""


def measure(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    *,
    temperature: float,
    count: int = 400,
    seed: int = 0,
) -> Scores:
    """Score both roles on ``count`` held-out tasks; the writer gets the right tool result."""
    torch.manual_seed(seed)
    asked = tasks("held_out", count, seed=seed)
    planner_prompts = [_prompt(tokenizer, planner_messages(task), [LOOKUP_TOOL]) for task in asked]
    writer_prompts = [_prompt(tokenizer, writer_messages(task), None) for task in asked]
    calls = generate(model, tokenizer, planner_prompts, temperature=temperature)
    answers = generate(model, tokenizer, writer_prompts, temperature=temperature)
    parsed = [_parse_call(text) for text in calls]
    parts = [score(task, answer) for task, answer in zip(asked, answers, strict=True)]
    right_calls = [
        {"name": "lookup", "arguments": {"item": task.item}} == call
        for task, call in zip(asked, parsed, strict=True)
    ]
    return Scores(
        temperature=temperature,
        planner_valid=sum(call is not None for call in parsed) / count,
        planner_right=sum(right_calls) / count,
        writer_right=sum(map(reward, asked, answers)) / count,
        writer_parts={name: sum(part[name] for part in parts) / count for name in parts[0]},
        examples=tuple(answers[:8]),
    )


def _prompt(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
) -> list[int]:
    text = tokenizer.apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, tokenize=False
    )
    return tokenizer(text)["input_ids"]


def _parse_call(text: str) -> dict[str, Any] | None:
    match = _TOOL_CALL.fullmatch(text.strip())
    if match is None:
        return None
    try:
        return json.loads(match.group(1))
    except json.JSONDecodeError:
        return None


@torch.no_grad()
def generate(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[list[int]],
    *,
    temperature: float,
) -> list[str]:
    """Sample one answer per prompt; greedily at temperature 0."""
    batch = tokenizer.pad({"input_ids": list(prompts)}, padding_side="left", return_tensors="pt")
    sampling: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    output = model.generate(**batch, max_new_tokens=MAX_NEW_TOKENS, **sampling)
    answers = output[:, batch["input_ids"].shape[1] :]
    end = {tokenizer.eos_token_id, tokenizer.pad_token_id}
    return [
        tokenizer.decode([token for token in row if token not in end]) for row in answers.tolist()
    ]
