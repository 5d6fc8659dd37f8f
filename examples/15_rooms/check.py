"""Measure whether the model obeys the sentences of a prompt: ``python check.py model``.

For each rule the shares of answers, sampled at temperature 1, that do what the rule says: with the
bare prompt, with the sentence that the model learned to obey, and with another one.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from critic import WORDINGS
from make_model import OBEYED, call
from office import NO_ROOMS, NONE, SEATS, TOOL
from program import SYSTEM
from run_agent import HELD_OUT, held_out_tasks
from transformers import AutoModelForCausalLM, AutoTokenizer

import agl_core as agl

Chat = tuple[list[dict[str, Any]], Callable[[str], bool]]
"""Messages, and whether an answer to them obeys the rule."""
LONGEST = 48
"""Tokens of an answer."""


def chat(rule: str, task: agl.Task, sentence: str, chance: random.Random) -> Chat:
    """Return what asks for a rule, with a sentence at the end of the prompt."""
    system = SYSTEM.format(team=task.input["team"])
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": f"{system} {sentence}".strip()},
        {"role": "user", "content": task.input["request"]},
    ]
    if rule in task.metadata:
        return messages, lambda text: arguments(text).get(rule) == task.metadata[rule]
    found: list[str] = []
    if rule == "smallest":
        picked = {*chance.sample([*SEATS], chance.randint(2, 5))}
        found = [room for room in SEATS if room in picked]
    given = {"arguments": json.dumps(task.metadata), "name": TOOL["function"]["name"]}
    messages += [
        {"role": "assistant", "content": "", "tool_calls": [{"function": given}]},
        {"role": "tool", "content": ", ".join(found) or NO_ROOMS},
    ]
    return messages, lambda text: text.strip() == (found[0] if found else NONE)


def arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a call of the tool; empty if it is none."""
    before, after = call({}).split("{}")
    try:
        found = json.loads(text.strip().removeprefix(before).removesuffix(after))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@torch.no_grad()
def answers(directory: Path, chats: Sequence[list[dict[str, Any]]]) -> list[str]:
    """Sample an answer of the model to each conversation."""
    tokenizer = AutoTokenizer.from_pretrained(directory, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    asked = tokenizer.apply_chat_template(
        list(chats), tools=[TOOL], add_generation_prompt=True, tokenize=False
    )
    read = tokenizer(asked, return_tensors="pt", padding=True)
    made = model.generate(**read, do_sample=True, max_new_tokens=LONGEST)
    return tokenizer.batch_decode(made[:, read["input_ids"].shape[1] :], skip_special_tokens=True)


def share(
    directory: Path, rule: str, sentences: Sequence[str], *, seed: int = 0, tasks: int = HELD_OUT
) -> float:
    """Return the share of held-out requests whose answer obeys the rule."""
    chance = random.Random(seed)
    asked = held_out_tasks()[:tasks]
    chats = [chat(rule, task, chance.choice(sentences), chance) for task in asked]
    said = answers(directory, [messages for messages, _ in chats])
    return sum(obeys(text) for (_, obeys), text in zip(chats, said, strict=True)) / len(chats)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python check.py", description=__doc__)
    parser.add_argument("model", type=Path, help="folder of the model")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    print("| Sentence | Obeyed without | With | With another |")
    print("|---|---|---|---|")
    for (rule, obeyed), wordings in zip(OBEYED.items(), WORDINGS.values(), strict=True):
        others = [each for each in wordings if each != obeyed]
        shares = [
            f"{share(options.model, rule, sentences, seed=options.seed):.3f}"
            for sentences in ([""], [obeyed], others)
        ]
        print(f"| {obeyed} | {' | '.join(shares)} |", flush=True)


if __name__ == "__main__":
    main()
