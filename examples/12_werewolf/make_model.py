"""Make this example's model: ``python make_model.py --out model``.

Qwen2's architecture with some 700,000 weights. It learns the forms of the answers from games of
scripted players, whose wolves hardly know what is good for them. Works offline, in some minutes.

Where such a wolf names a seat, the model learns the probabilities of both seats that the prompt
gives instead of the one that was drawn.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import random
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from torch.nn.functional import log_softmax
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
)
from werewolf.asking import Player, Request, Watcher
from werewolf.forms import MATE, OTHER, Form, UnclearAnswerError, read
from werewolf.game import play
from werewolf.prompts import BRIEF, called, system, user
from werewolf.rules import SEATS, Role, camp
from werewolf.scripted import Novice, Villager

_LOG = logging.getLogger(__name__)
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
WORDS = ("10", "11", "12", *(f"{camp}{seat}" for camp in (MATE, OTHER) for seat in range(1, 13)))
"""Seats of two digits, and seats after the word for their camp, each one token."""
VOCAB, CONTEXT = 512, 1024
GAMES, STEPS, BATCH, WARMUP, LR = 120, 600, 24, 40, 3e-3
DRILLS = 0.6
"""Share of a batch that is drills: questions about random seats."""
QUESTIONS = (
    "放逐谁？",
    "警长投给谁？",
    "今夜杀谁？",
    "是否开枪，打谁？",
    "警徽交给谁？无表示撕掉。",
)
TALK = "与同伴商量今夜杀谁，是否同意现在的目标？"
PROMPT_WEIGHT = 0.02
"""Loss weight of a prompt's token; an answer's token has weight 1."""

Example = tuple[Request, str]


@dataclass(frozen=True, slots=True)
class Row:
    """A question with an answer, as the model reads it."""

    ids: list[int]
    question: int
    """Number of the tokens of the question."""
    odds: dict[int, dict[int, float]]
    """Position of a seat's name to the probabilities of the tokens that may stand there."""


class _Keep(Watcher):
    """Keeps the questions to wolves, and their clear answers."""

    def __init__(self) -> None:
        self.examples: list[Example] = []

    def on_answer(self, request: Request, text: str, problem: str) -> None:
        if camp(request.role) == "wolves" and not problem:
            self.examples.append((request, text))


def examples(first: int, count: int) -> list[Example]:
    """Return questions and answers of some games of scripted players."""
    keep = _Keep()

    for game in range(first, first + count):

        def seating(seat: int, role: Role, game: int = game) -> Player:
            script = Novice if camp(role) == "wolves" else Villager
            return script(f"{game} {seat}")

        asyncio.run(play(seating, f"model {game}", keep))
    return keep.examples


def drill(chance: random.Random) -> Example:
    """Return a question about random seats with an answer; one in three is the talk at night."""
    living = sorted(chance.sample(SEATS, chance.randint(4, len(SEATS))))
    options = sorted(chance.sample(living, chance.randint(1, len(living))))
    seat, *others = chance.sample(SEATS, 4)
    question, form = chance.choice(QUESTIONS), Form.SEAT_OR_NONE
    if chance.random() < 1 / 3:
        question, form = TALK, Form.SPEECH_YES_NO
    request = Request(
        seat=seat,
        role=chance.choice((Role.WOLF, Role.WOLF_KING)),
        mates=tuple(sorted((seat, *others))),
        round=chance.randint(1, 6),
        phase="drill",
        question=question,
        form=form,
        options=tuple(options),
        living=tuple(living),
        sheriff=None,
        lines=(),
    )
    return request, Novice(chance.random()).say(request)


def messages(request: Request) -> list[dict[str, str]]:
    """Return what an agent sends for one question."""
    return [
        {"role": "system", "content": system(request, BRIEF)},
        {"role": "user", "content": user(request, BRIEF)},
    ]


def make_tokenizer(given: list[Example]) -> Qwen2Tokenizer:
    """Train the tokenizer on questions and answers."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, END_OF_TEXT, TURN_START, TURN_END]
    blank = Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[],
        unk_token=END_OF_TEXT,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        extra_special_tokens=[TURN_START],
        model_max_length=CONTEXT,
    )
    texts = ["system\n", "user\n", "assistant\n"]
    for request, answer in given:
        texts += [*(message["content"] for message in messages(request)), answer]
    tokenizer = blank.train_new_from_iterator(texts, vocab_size=VOCAB - len(WORDS))
    tokenizer.add_tokens(list(WORDS))
    template = files("agl_demo") / "chat_template.jinja"
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    return tokenizer


def new_model(tokenizer: Qwen2Tokenizer) -> Qwen2ForCausalLM:
    """Create the model with random weights."""
    shape = Qwen2Config(
        vocab_size=math.ceil(len(tokenizer) / 64) * 64,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.03,
    )
    return Qwen2ForCausalLM(shape)


def make(directory: Path, *, seed: int = 0, steps: int = STEPS, games: int = GAMES) -> None:
    """Create tokenizer and model, train them and write them, the weights as bfloat16."""
    torch.manual_seed(seed)
    given = examples(0, games)
    _LOG.info("%d questions of %d games", len(given), games)
    tokenizer = make_tokenizer(given[:10_000])
    model = new_model(tokenizer)
    chance = random.Random(seed)
    draw = _Draw(given, chance)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95))
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = LR * _rate(step, steps)
        loss = _loss(model, [_row(tokenizer, *draw()) for _ in range(BATCH)])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 25 == 0:
            _LOG.info("step %d  loss %.3f", step, loss.item())
    model.eval().to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _rate(step: int, steps: int) -> float:
    warmup = min(1.0, (step + 1) / WARMUP)
    return warmup * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps)))


class _Draw:
    """Draws examples: rare phases more often than they come in games, and drills."""

    def __init__(self, given: list[Example], chance: random.Random) -> None:
        self.chance = chance
        self.of: dict[str, list[Example]] = defaultdict(list)
        for example in given:
            self.of[example[0].phase].append(example)
        self.weights = [math.sqrt(len(each)) for each in self.of.values()]

    def __call__(self) -> Example:
        if self.chance.random() < DRILLS:
            return drill(self.chance)
        (phase,) = self.chance.choices(list(self.of), self.weights)
        return self.chance.choice(self.of[phase])


def _row(tokenizer: Any, request: Request, answer: str) -> Row:
    prompt = _prompt(tokenizer, request)
    said = tokenizer(answer)["input_ids"]
    odds = _odds(tokenizer, request)
    places = [at for at, each in enumerate(said) if each in odds]
    ids = [*prompt, *said, tokenizer.eos_token_id]
    return Row(ids, len(prompt), {len(prompt) + at: odds for at in places})


def _odds(tokenizer: Any, request: Request) -> dict[int, float]:
    """Return the probabilities of the seats that may be named; empty where none is asked for."""
    if request.form in (Form.SPEECH, Form.YES_NO):
        return {}
    odds = Novice("").odds(request)
    named = {seat: called(seat, request.mates) for seat in odds}
    return {tokenizer.convert_tokens_to_ids(named[seat]): odds[seat] for seat in odds}


def _prompt(tokenizer: Any, request: Request) -> list[int]:
    text = tokenizer.apply_chat_template(
        messages(request), add_generation_prompt=True, tokenize=False
    )
    return tokenizer(text)["input_ids"]


def _loss(model: Any, rows: list[Row]) -> torch.Tensor:
    """Return the cross entropy with what each row wants at each place."""
    length = max(len(row.ids) for row in rows)
    tokens = torch.zeros((len(rows), length), dtype=torch.long)
    wanted = torch.zeros((len(rows), length, model.config.vocab_size))
    for row, each in enumerate(rows):
        ids = torch.tensor(each.ids)
        tokens[row, : len(ids)] = ids
        wanted[row, torch.arange(len(ids)), ids] = 1.0
        for at, odds in each.odds.items():
            wanted[row, at, each.ids[at]] = 0.0
            wanted[row, at, list(odds)] = torch.tensor(list(odds.values()))
        wanted[row, : each.question] *= PROMPT_WEIGHT
    read = log_softmax(model(input_ids=tokens).logits[:, :-1], dim=-1)
    return -(wanted[:, 1:] * read).sum() / wanted[:, 1:].sum()


@torch.no_grad()
def check(directory: Path, *, seed: int = 0, games: int = 10) -> None:
    """Print how many sampled answers to held-out questions are clear, by phase."""
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    clear: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    lengths: list[int] = []
    for request, _ in examples(1_000_000, games):
        prompt = _prompt(tokenizer, request)
        lengths.append(len(prompt))
        ids = model.generate(torch.tensor([prompt]), do_sample=True, max_new_tokens=32)
        text = tokenizer.decode(ids[0, len(prompt) :], skip_special_tokens=True)
        asked[request.phase] += 1
        try:
            read(text, request.form, request.options)
        except UnclearAnswerError:
            if asked[request.phase] - clear[request.phase] < 3:
                _LOG.info("unclear for %s: %r", request.phase, text)
        else:
            clear[request.phase] += 1
    _LOG.info("prompts of %d tokens, at most %d", sum(lengths) / len(lengths), max(lengths))
    for phase, count in asked.items():
        _LOG.info("%-12s clear %.3f of %d", phase, clear[phase] / count, count)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--out", type=Path, metavar="DIR", help="make a model in this folder")
    action.add_argument("--check", type=Path, metavar="DIR", help="measure the model in it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--games", type=int, default=GAMES)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if options.out is not None:
        make(options.out, seed=options.seed, steps=options.steps, games=options.games)
    check(options.out or options.check, seed=options.seed)


if __name__ == "__main__":
    main()
