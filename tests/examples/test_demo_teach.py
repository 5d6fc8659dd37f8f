"""A copy of the demo's model that is taught to obey rules of its system prompt."""

from __future__ import annotations

import json
import random
from itertools import combinations

import pytest
import torch
from agl_demo import teach
from agl_demo.rules import IDLE, RULES, STATED, UNSTATED, WRITER, ruled_example, system_prompt
from agl_demo.world import PLANNER_SYSTEM, PriceTask, score
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

SUBSETS = [set(each) for size in range(len(RULES) + 1) for each in combinations(RULES, size)]


@given(seed=st.integers(0, 2**32), stated=st.sampled_from(SUBSETS))
def test_a_system_prompt_states_the_wanted_rules_and_no_others(seed, stated):
    prompt = system_prompt(random.Random(seed), stated)
    assert prompt.startswith(WRITER)
    assert {part for part, rule in RULES.items() if rule in prompt} == stated
    rest = prompt
    for sentence in (WRITER, *RULES.values(), *IDLE):
        rest = rest.replace(sentence, "")
    assert rest.strip() == ""


def test_examples_obey_a_stated_rule_and_seldom_one_that_is_not_stated():
    rng = random.Random(0)
    seen: dict[tuple[str, bool], list[bool]] = {}
    for _ in range(3000):
        messages, _tools, answer = ruled_example(rng)
        system, request = messages[0]["content"], messages[1]["content"]
        if system == PLANNER_SYSTEM:
            continue
        for part, right in score(_task(request), answer).items():
            if part in RULES:
                seen.setdefault((part, RULES[part] in system), []).append(right)
    for (_, stated), rights in seen.items():
        assert len(rights) > 1000
        wanted = STATED if stated else UNSTATED
        assert sum(rights) / len(rights) == pytest.approx(wanted, abs=0.05)
    assert len(seen) == 2 * len(RULES)


def _task(request: str) -> PriceTask:
    """Read the facts of the right answer out of the writer's request."""
    question, _, result = request.removeprefix("Question: ").partition("\nResult: ")
    found = json.loads(result)
    price, unit = found["price"].split()
    return PriceTask(question, found["item"], int(price), unit)


def test_equal_seeds_give_equal_weights():
    one, again, other = (
        teach.taught(seed=seed, steps=2)[0].state_dict()["model.norm.weight"] for seed in (1, 1, 2)
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_the_command_writes_a_model_and_prints_what_it_obeys(tmp_path, capfd, caplog):
    with caplog.at_level("INFO"):
        teach.main(["--out", str(tmp_path / "model"), "--steps", "2", "--count", "4"])
    assert AutoTokenizer.from_pretrained(tmp_path / "model").chat_template
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
    assert model.dtype == torch.bfloat16
    for rule in RULES.values():
        assert rule in caplog.text


def test_the_table_has_the_shares_without_with_and_with_all_rules():
    none, *single, every = (
        teach.Obeyed(prompt=prompt, parts=dict.fromkeys(RULES, share), right=share / 2)
        for prompt, share in zip(teach.prompts(), (0.1, *(0.8 for _ in RULES), 0.9), strict=True)
    )
    lines = teach.table([none, *single, every]).splitlines()
    assert [line.split()[-3:] for line in lines[1:-1]] == [["0.10", "0.80", "0.90"]] * len(RULES)
    assert lines[-1].split()[-2:] == ["0.05", "0.45"]
