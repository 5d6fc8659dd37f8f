"""Conversations in files, and which of them a step takes."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from agl_imitation._conversations import read_examples
from agl_imitation._sft import SFT, SFTOptions, drawn
from hypothesis import given
from hypothesis import strategies as st

from agl_core.config.validation import validate
from agl_core.errors import ConfigError, TrainingError
from agl_core.interfaces import Engine, TakesFilters
from agl_core.types import Policy

ASK = {"role": "user", "content": "hi"}
SAY = {"role": "assistant", "content": "ho"}


def write(path, *lines):
    path.write_text(
        "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    )
    return path


def test_assistant_messages_are_trained_unless_their_weight_is_0(tmp_path):
    path = write(
        tmp_path / "a.jsonl",
        {"messages": [ASK, {**SAY, "weight": 0}, ASK, {**SAY, "weight": 1}, ASK, SAY]},
        "",
        {"messages": [ASK, SAY], "agent": "writer", "tools": [{"type": "function"}]},
    )
    first, second = read_examples(path)
    assert first.trained == (3, 5)
    assert first.messages == [ASK, SAY] * 3
    assert (first.agent, second.agent) == ("", "writer")
    assert second.place == f"{path}:3"
    assert second.tools == [{"type": "function"}]


def test_only_the_preferred_side_of_a_preference_is_trained(tmp_path):
    row = {
        "input": {"messages": [ASK, SAY, ASK], "tools": [{"type": "function"}]},
        "preferred_output": [{"role": "assistant", "content": "good"}],
        "non_preferred_output": [{"role": "assistant", "content": "bad"}],
    }
    (example,) = read_examples(write(tmp_path / "a.jsonl", row))
    assert example.trained == (3,)
    assert example.messages == [ASK, SAY, ASK, {"role": "assistant", "content": "good"}]
    assert example.tools == [{"type": "function"}]


def test_a_line_may_contain_any_character_of_json(tmp_path):
    row = json.dumps({"messages": [ASK, {**SAY, "content": "a\u2028b"}]}, ensure_ascii=False)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + row.encode() + b"\r\n")
    (example,) = read_examples(path)
    assert example.messages[1]["content"] == "a\u2028b"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "has no conversations"),
        (["", "  "], "has no conversations"),
        ([{"messages": [ASK, SAY]}, '{"messages": ['], r"a\.jsonl:2 is no JSON"),
        (["[1]"], r":1: an object is needed, not \[1\]"),
        (
            [{"prompt": "a", "completion": "b"}],
            r":1: neither messages .*\['completion', 'prompt'\]",
        ),
        ([{"messages": "hi"}], ":1: messages: a list is needed, not 'hi'"),
        ([{"messages": []}], ":1 has no assistant message"),
        ([{"messages": [ASK]}], ":1 has no assistant message"),
        ([{"input": {"messages": [ASK, SAY]}, "preferred_output": []}], "no assistant message"),
        ([{"input": [], "preferred_output": [SAY]}], ":1: input: an object is needed"),
        ([{"messages": [ASK, {**SAY, "weight": 0}]}] * 2, "2 conversations in .* has weight 0"),
        ([{"messages": [ASK, {**SAY, "weight": 0.5}]}], "message 1: weight is 0.5: only"),
        ([{"messages": [ASK, {**SAY, "weight": True}]}], "message 1: weight is True: only"),
        ([{"messages": [{**ASK, "weight": 1}, SAY]}], "message 0: weight is 1: only assistant"),
        ([{"messages": [ASK, {"role": "bot"}]}], "message 1: role is 'bot': one of system"),
        ([{"messages": [ASK, {"role": "assistant"}]}], "message 1: an assistant message needs one"),
        ([{"messages": [ASK, "ho"]}], "message 1: an object is needed, not 'ho'"),
        ([{"messages": [ASK, SAY], "agent": 3}], ":1: agent is 3"),
        ([{"messages": [ASK, SAY], "functions": [{}]}], ":1: functions are not supported"),
    ],
)
def test_a_malformed_file_is_refused_with_the_line(tmp_path, lines, message):
    with pytest.raises(ConfigError, match=message):
        read_examples(write(tmp_path / "a.jsonl", *lines))


def test_a_missing_file_is_refused_before_the_run_starts(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.jsonl"):
        SFT(SFTOptions(data=[str(tmp_path / "none.jsonl")]))


@pytest.mark.parametrize("options", [{}, {"data": []}, {"data": ["a"], "batch_size": 0}])
def test_a_wrong_option_is_refused(options):
    with pytest.raises(ConfigError, match=r"data|batch_size"):
        validate(SFTOptions, options, where="algorithm")


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 99), st.integers(1, 4))
def test_every_epoch_takes_every_conversation_once(size, of, seed, epochs):
    steps = -(-of * epochs // size)
    taken = [index for step in range(steps) for index in drawn(step, size, of=of, seed=seed)]
    for epoch in range(epochs):
        assert Counter(taken[epoch * of : (epoch + 1) * of]) == Counter(range(of))


def test_the_order_depends_on_the_seed():
    assert drawn(0, 50, of=50, seed=1) != drawn(0, 50, of=50, seed=2)
    assert drawn(3, 8, of=50, seed=1) == drawn(3, 8, of=50, seed=1)


class Renders(Engine):
    """An engine whose template is one id per message, between a start and an end."""

    async def start(self, policies): ...

    async def stop(self): ...

    def backend(self, policy):
        return self

    async def context_length(self):
        return 4

    @staticmethod
    def renderer(model):
        if model == "closed":
            return None
        return lambda messages, tools: [len(str(each)) for each in messages]


def demonstrate(path, *policies, **options):
    algorithm = SFT(SFTOptions(data=[str(path)], **options))
    named = {policy.name: policy for policy in policies}
    return algorithm.demonstrate(0, named, Renders(), seed=0)


def trained(*agents, name="p", **fields):
    return Policy(name=name, agents=agents, trainable=True, **fields)


async def test_every_agent_of_a_file_trains_its_own_policy(tmp_path):
    rows = [{"messages": [ASK, SAY], "agent": agent} for agent in ("writer", "editor", "critic")]
    policies = [trained("writer", version=3), trained("e*", "critic", name="q", version=5)]
    groups, _ = await demonstrate(write(tmp_path / "a.jsonl", *rows), *policies, batch_size=3)
    found = {each.agent: (each.policy, each.trajectories[0][0].calls[0]) for each in groups}
    assert {agent: policy for agent, (policy, _) in found.items()} == {
        "writer": "p",
        "editor": "q",
        "critic": "q",
    }
    assert found["editor"][1].policy_version == 5


async def test_conversations_are_rendered_as_filters_leave_them(tmp_path):
    class Hides:
        def cleaned(self, value, use):
            return json.loads(json.dumps(value).replace("secret", "***"))

    rows = [{"messages": [{"role": "user", "content": "a secret"}, SAY], "agent": "writer"}]
    seen = []

    class Sees(Renders):
        @staticmethod
        def renderer(model):
            return lambda messages, tools: [
                len(str(each)) for each in (seen.extend(messages) or messages)
            ]

    algorithm = SFT(SFTOptions(data=[str(write(tmp_path / "a.jsonl", *rows))], batch_size=1))
    assert isinstance(algorithm, TakesFilters)
    algorithm.filter_by([Hides()])
    _, losses = await algorithm.demonstrate(0, {"p": trained("writer")}, Sees(), seed=0)
    assert losses.counts == {"conversations_cleaned": 1}
    assert seen
    assert "secret" not in str(seen)


@pytest.mark.parametrize(
    ("agent", "policies", "message"),
    [
        ("", [trained("writer", "editor")], "a.jsonl:1 names no agent"),
        ("", [trained("w*")], "names no agent: add the field 'agent', or set algorithm.agent"),
        ("editor", [trained("writer")], r"agent 'editor', which this run does not train"),
        ("editor", [trained("writer"), Policy(name="q", agents=("*",))], "does not train"),
        ("writer", [trained("writer", model="closed")], "Renders does not give the chat template"),
    ],
)
async def test_an_agent_that_cannot_be_trained_is_refused(tmp_path, agent, policies, message):
    row = {"messages": [ASK, SAY], "agent": agent}
    with pytest.raises(ConfigError, match=message):
        await demonstrate(write(tmp_path / "a.jsonl", row), *policies)


async def test_a_step_without_a_usable_conversation_ends_the_run(tmp_path):
    path = write(tmp_path / "a.jsonl", {"messages": [ASK] * 5 + [SAY]})
    with pytest.raises(TrainingError, match=r"None of the 8 .*'conversations_too_long': 8"):
        await demonstrate(path, trained("writer"))
