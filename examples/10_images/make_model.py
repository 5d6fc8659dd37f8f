"""Make the model of this example: ``python make_model.py --out DIR``.

Qwen2-VL's architecture with some 180,000 weights and the demo's words. It learns to name
colours when it is asked, and to be right somewhat more often than by chance: half of the answers
that it learns from are drawn by lot. Works offline, in about a minute.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from pathlib import Path
from typing import Any

import torch
from agent import COLOURS, WARM, WIDTHS, picture
from agl_demo.seeing import make_seeing, save_seeing
from agl_verl.vision import Vision, vision_of

_LOG = logging.getLogger(__name__)
SAMPLES, BATCH, LR = 4800, 32, 2e-3
RIGHT = 0.5
"""Probability of a right answer in the training data; otherwise the answer is random."""
UNSEEN = 0.1
"""Fraction of conversations without an image, like those of the other agent."""


def make(directory: Path, *, seed: int = 0) -> None:
    """Create the model, train it and write it."""
    model, tokenizer = make_seeing(seed=seed)
    save_seeing(directory, model, tokenizer)
    vision = vision_of(str(directory))
    assert vision is not None
    teach(model, tokenizer, vision, seed=seed)
    save_seeing(directory, model, tokenizer)


def teach(model: Any, tokenizer: Any, vision: Vision, *, seed: int) -> None:
    """Train the model on conversations, half of whose answers are random."""
    chance = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    for step in range(SAMPLES // BATCH):
        loss = _loss(model, vision, [_talk(chance, tokenizer, vision) for _ in range(BATCH)])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            _LOG.info("step %d  loss %.3f", step, loss.item())


def _talk(chance: random.Random, tokenizer: Any, vision: Vision) -> dict[str, Any]:
    """Return the ids of one conversation, which of them are answers, and its image."""
    seen = chance.choice(COLOURS)
    colour = seen if chance.random() < RIGHT else chance.choice(COLOURS)
    warm = _yes(seen in WARM) if chance.random() < RIGHT else chance.choice(("yes", "no"))
    if chance.random() < UNSEEN:
        said = f"It is {colour}. Warm: {warm}."
        turns, url = [(said, "Thank you.")], ""
    else:
        shown = [{"type": "image"}, {"type": "text", "text": "Colour?"}]
        turns, url = [(shown, colour), ("Warm?", warm)], picture(seen, chance.choice(WIDTHS))
    messages: list[dict[str, Any]] = []
    ids: list[int] = []
    answers: list[bool] = []
    for asked, answer in turns:
        messages.append({"role": "user", "content": asked})
        start = len(_ids(tokenizer, vision, messages, url, opened=True))
        messages.append({"role": "assistant", "content": answer})
        ids = _ids(tokenizer, vision, messages, url, opened=False)
        ids = ids[: ids.index(tokenizer.eos_token_id, start) + 1]
        answers += [False] * (start - len(answers)) + [True] * (len(ids) - start)
    return {"ids": ids, "answers": answers, "url": url}


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"


def _ids(tokenizer: Any, vision: Vision, messages: Any, url: str, *, opened: bool) -> list[int]:
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=opened, tokenize=False)
    length = vision.lengths([url])[0] if url else 1
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return [each for id_ in ids for each in [id_] * (length if id_ == vision.token else 1)]


def _loss(model: Any, vision: Vision, talks: list[dict[str, Any]]) -> torch.Tensor:
    ids = torch.zeros(len(talks), max(len(talk["ids"]) for talk in talks), dtype=torch.long)
    labels, mask = torch.full_like(ids, -100), torch.zeros_like(ids)
    for row, talk in enumerate(talks):
        size, wanted = len(talk["ids"]), torch.tensor(talk["answers"])
        ids[row, :size] = torch.tensor(talk["ids"])
        mask[row, :size] = 1
        labels[row, :size][wanted] = ids[row, :size][wanted]
    shown = vision.inputs([talk["url"] for talk in talks if talk["url"]])
    marks = (ids == vision.token).int()
    output = model(
        input_ids=ids, attention_mask=mask, labels=labels, mm_token_type_ids=marks, **shown
    )
    return output.loss


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    make(options.out, seed=options.seed)


if __name__ == "__main__":
    main()
