"""Textual gradients with beam search on toy phases."""

from __future__ import annotations

import random

import pytest
from agl_apo import ApoOptions
from agl_apo._apo import apo
from agl_prompts import EditorError

from agl_core.errors import ConfigError
from agl_core.types import FailureKind
from tests.trainers.toy_phase import ScriptedEditor, ToyPhase, current, fenced, tasks, tuned

WORDS = ("short", "exact", "polite")


def worded(texts, task, rng):
    """The share of the wanted words in the writer's prompt."""
    return sum(word in texts["writer"] for word in WORDS) / len(WORDS)


def adding(content):
    """Write the prompt with the first wanted word that it lacks."""
    text = current(content)
    missing = [word for word in WORDS if word not in text]
    return fenced(f"{text} Be {missing[0]}." if missing else text)


@pytest.fixture
def tune(tmp_path, scripted):
    """Tune a toy phase with a scripted editor; returns the result."""

    async def run(phase_or_score, editor=None, **options):
        phase = phase_or_score
        if callable(phase):
            phase = ToyPhase(tmp_path, phase)
        editor = editor or ScriptedEditor(adding)
        run.phase, run.editor = phase, editor
        given = {"editor": {"function": scripted(editor)}, **options}
        return await apo(ApoOptions(**given)).optimize(phase)

    return run


async def test_it_reaches_the_best_prompt_within_the_budget(tune):
    tuned_ = await tune(worded)
    assert all(word in tuned_.texts["writer"] for word in WORDS)
    assert tuned_.before.mean == 0
    assert tuned_.after.mean == 1
    assert len(tune.phase.ran) == tuned_.rollouts <= tune.phase.rollouts


@pytest.mark.parametrize("rollouts", range(36, 200, 11))
async def test_no_budget_is_exceeded_and_each_validates_a_proposal(tune, tmp_path, rollouts):
    phase = ToyPhase(tmp_path, worded, rollouts=rollouts)
    tuned_ = await tune(phase)
    assert len(phase.ran) == tuned_.rollouts <= rollouts
    assert tuned_.after.mean > tuned_.before.mean


async def test_a_budget_below_one_proposal_is_refused(tune, tmp_path):
    phase = ToyPhase(tmp_path, worded, rollouts=35)
    with pytest.raises(ConfigError, match="at least 36 rollouts"):
        await tune(phase)
    assert not phase.ran


async def test_too_few_validation_tasks_for_the_confidence_are_refused(tune, tmp_path):
    phase = ToyPhase(tmp_path, worded, val=tasks("v", 10))
    with pytest.raises(ConfigError, match=r"at least 11 validation tasks, of which 6 decide.* 10:"):
        await tune(phase)
    assert (await tune(phase, confidence=0)).after.mean == 1


async def test_the_batch_of_every_round_has_the_same_tasks(tune, tmp_path):
    words = iter(range(1000))
    editor = ScriptedEditor(lambda content: fenced(f"{current(content)} {next(words)}"))
    phase = ToyPhase(tmp_path, lambda *given: given[2].random(), val=tasks("v", 40), rollouts=3000)
    await tune(phase, editor, val_batch=8)
    on = {}
    for text, task in phase.evaluated():
        on.setdefault(text, set()).add(task)
    partial = [each for each in on.values() if len(each) < 40]
    assert len(partial) > 40
    assert all(each == partial[0] for each in partial)


async def test_a_round_evaluates_its_candidates_together(tune, tmp_path):
    words = iter(f"word{i}" for i in range(1000))
    editor = ScriptedEditor(lambda content: fenced(f"{current(content)} {next(words)}"))
    phase = ToyPhase(tmp_path, lambda *_: 0.5, rollouts=2000)
    await tune(phase, editor, rounds=2)
    # The incumbent; per round the parents, and all children in one call.
    sizes = [len(call) for call in phase.asked]
    assert sizes[0] == 16
    assert sizes[2] == sizes[-1] == 128


async def test_an_editor_that_repeats_the_text_costs_no_validation(tune, tmp_path):
    editor = ScriptedEditor(lambda content: fenced(current(content)))
    phase = ToyPhase(tmp_path, worded, rollouts=2000)
    tuned_ = await tune(phase, editor, max_refused=1000)
    assert tune.phase.evaluated("v") == {("Answer.", f"v{i}") for i in range(16)}
    assert tuned_.texts == {"writer": "Answer."}
    assert "none of 48 edits gave a new candidate" in tuned_.reason
    assert tune.phase.losses.counts["prompts_refused_same"] == 48


async def test_a_critic_that_says_nothing_is_not_followed_by_an_edit(tune, tmp_path):
    editor = ScriptedEditor(adding, criticise=lambda _: "  ")
    tuned_ = await tune(ToyPhase(tmp_path, worded, rollouts=2000), editor)
    assert editor.count("editor") == 0
    assert editor.count("critic") == 48
    assert tuned_.texts == {"writer": "Answer."}
    assert len(tune.phase.evaluated("v")) == 16


def gone_after(count, write):
    """Return a writer whose endpoint is gone after some answers; the critic still answers."""
    left = iter(range(count))

    def writing(content):
        if next(left, None) is None:
            raise RuntimeError("the editor is gone")
        return write(content)

    return writing


async def test_failing_editors_end_the_phase_with_the_best_so_far(tune):
    tuned_ = await tune(worded, ScriptedEditor(gone_after(1, adding)))
    assert tuned_.texts == {"writer": "Answer. Be short."}
    assert "3 times in a row" in tuned_.reason
    assert tune.editor.count("editor") == 4


async def test_an_early_end_keeps_no_candidate_that_only_the_batch_liked(tune, tmp_path):
    """Sixteen noisy means have a high maximum, which is no reason to leave the incumbent."""
    words = iter(range(1000))
    write = gone_after(16, lambda content: fenced(f"{current(content)} {next(words)}"))
    phase = ToyPhase(tmp_path, lambda texts, task, rng: float(rng.random() < 0.5), rollouts=2000)
    tuned_ = await tune(phase, ScriptedEditor(write))
    assert "3 times in a row" in tuned_.reason
    assert tuned_.texts == {"writer": "Answer."}


async def test_an_editor_that_never_answers_fails_the_run_though_the_critic_does(tune):
    with pytest.raises(EditorError, match="the editor is gone"):
        await tune(worded, ScriptedEditor(gone_after(0, adding)))
    assert tune.editor.count("editor") == 3


def fixed(texts, task, rng):
    """Chance that is equal in every rollout of a text on a task, as of a model without sampling."""
    del rng
    return float(random.Random(f"{texts['writer']} {task.id}").random() < 0.5)


@pytest.mark.parametrize("noise", [lambda texts, task, rng: float(rng.random() < 0.5), fixed])
async def test_equal_prompts_are_rarely_called_better(tune, tmp_path, noise):
    changed = 0
    for seed in range(30):
        words = iter(range(1000))

        def write(content, words=words, seed=seed):
            return fenced(f"{current(content)} {seed}.{next(words)}")

        directory = tmp_path / str(seed)
        phase = ToyPhase(directory, noise, val=tasks("v", 14), rollouts=2000, seed=seed)
        editor = ScriptedEditor(write)
        tuned_ = await tune(phase, editor, branch_factor=3, beam_width=2)
        changed += tuned_.texts != {"writer": "Answer."}
    assert changed <= 2


async def test_a_hanging_prompt_is_worse_than_one_that_answers(tune):
    """Failed attempts count with the penalty; left out, they would make the score 1."""

    def hangs(texts, task, rng):
        if "think long" in texts["writer"]:
            return 1.0 if task.id in ("v0", "t0") else FailureKind.DEADLINE
        return 0.5

    editor = ScriptedEditor(lambda content: fenced(f"{current(content)} think long"))
    tuned_ = await tune(hangs, editor)
    assert tuned_.texts == {"writer": "Answer."}


async def test_infrastructure_failures_do_not_change_the_order(tune):
    def faulty(texts, task, rng):
        return FailureKind.ENGINE if rng.random() < 0.3 else worded(texts, task, rng)

    tuned_ = await tune(faulty)
    assert all(word in tuned_.texts["writer"] for word in WORDS)
    assert tune.phase.losses.counts["prompts_rollouts_lost"] > 0
    assert len(tune.phase.ran) <= tune.phase.rollouts


async def test_the_best_is_kept_and_not_the_last(tune):
    """After the best text each further edit makes it worse."""

    def score(texts, task, rng):
        text = texts["writer"]
        return worded(texts, task, rng) - 0.1 * text.count("really")

    def write(content):
        text = current(content)
        return (
            adding(content)
            if worded({"writer": text}, None, None) < 1
            else fenced(f"{text} really")
        )

    tuned_ = await tune(score, ScriptedEditor(write), rounds=6)
    assert tuned_.after.mean == 1
    assert "really" not in tuned_.texts["writer"]


async def test_equal_seeds_give_equal_runs(tune, tmp_path):
    results = []
    for name in ("one", "two", "other"):
        seed = 1 if name == "other" else 0
        phase = ToyPhase(tmp_path / name, worded, seed=seed, val=tasks("v", 30))
        tuned_ = await tune(phase, val_batch=8)
        results.append((tuned_, phase.asked, tune.editor.requests))
    assert results[0] == results[1]
    assert results[0][1] != results[2][1]


@pytest.mark.parametrize("stop", range(0, 100, 13))
async def test_a_resumed_phase_repeats_nothing(tune, tmp_path, stop):
    whole = ToyPhase(tmp_path / "whole", worded)
    expected = await tune(whole)
    finished = {}
    cut = ToyPhase(tmp_path / "cut", worded, finished=finished, stops_after=stop)
    first = ScriptedEditor(adding)
    with pytest.raises(KeyboardInterrupt):
        await tune(cut, first)
    again = ToyPhase(tmp_path / "cut", worded, finished=finished)
    second = ScriptedEditor(adding)
    assert await tune(again, second) == expected
    assert len(cut.ran) + len(again.ran) == len(whole.ran)
    assert (
        len(first.requests) + len(second.requests)
        == expected.calls["critic"] + expected.calls["editor"]
    )


async def test_prompts_are_edited_in_turn(tune, tmp_path):
    def score(texts, task, rng):
        return 0.5 * ("short" in texts["writer"]) + 0.5 * ("careful" in texts["planner"])

    def write(content):
        text = current(content)
        return fenced(f"{text} Be careful." if text.startswith("Plan") else f"{text} Be short.")

    prompts = {"planner": tuned("planner", "Plan."), "writer": tuned("writer", "Write.")}
    tuned_ = await tune(ToyPhase(tmp_path, score, prompts=prompts), ScriptedEditor(write))
    assert tuned_.texts == {"planner": "Plan. Be careful.", "writer": "Write. Be short."}
    asked = [current(content) for role, content in tune.editor.requests if role == "critic"]
    assert [text.split(".")[0] for text in asked[:4]] == ["Plan", "Write", "Plan", "Write"]


async def test_a_prompt_whose_agents_said_nothing_is_passed_over(tune, tmp_path):
    prompts = {"writer": tuned("writer", "Write."), "other": tuned("other", "Idle.")}

    class Silent(ToyPhase):
        def _outcome(self, each):
            kept, self.prompts = self.prompts, {"writer": prompts["writer"]}
            try:
                return super()._outcome(each)
            finally:
                self.prompts = kept

    phase = Silent(tmp_path, lambda texts, *_: float("short" in texts["writer"]), prompts=prompts)
    tuned_ = await tune(phase)
    assert tuned_.texts == {"writer": "Write. Be short.", "other": "Idle."}
    assert not any(current(content) == "Idle." for _, content in tune.editor.requests)


async def test_requests_are_bounded(tune, tmp_path):
    train = [type(each)(id=each.id, input=each.input + " x" * 50_000) for each in tasks("t", 12)]
    phase = ToyPhase(tmp_path, worded, train=train)
    editor = ScriptedEditor(adding, criticise=lambda _: "wrong " * 20_000)
    await tune(phase, editor, feedback_chars=2000, critique_chars=500)
    assert max(len(content) for role, content in editor.requests if role == "critic") < 3500
    assert max(len(content) for role, content in editor.requests if role == "editor") < 2500


async def test_placeholders_are_stated_and_kept(tune, tmp_path):
    prompts = {"writer": tuned(text='Answer {question} as {"json": 1}.')}
    texts = [
        lambda text: text.replace("{question}", ""),
        lambda text: f"{text} {{hint}}",
        lambda text: f'{text} Write {{"a": 1}}. short',
    ]
    turn = iter(range(10_000))
    editor = ScriptedEditor(lambda content: fenced(texts[next(turn) % 3](current(content))))
    phase = ToyPhase(tmp_path, worded, prompts=prompts)
    tuned_ = await tune(phase, editor, max_refused=1000)
    assert "{question}" in tuned_.texts["writer"]
    assert '{"a": 1}' in tuned_.texts["writer"]
    assert "{hint}" not in tuned_.texts["writer"]
    assert phase.losses.counts["prompts_refused_placeholders"] > 0
    assert all("{question}" in content for role, content in editor.requests if role == "editor")


async def test_files_replace_the_templates(tune, tmp_path):
    critique, edit = tmp_path / "critique.txt", tmp_path / "edit.txt"
    critique.write_text('C <current>\n{prompt}\n</current> {attempts} {"json": 1} {other}')
    edit.write_text("E <current>\n{prompt}\n</current> {critique} {rules}")
    await tune(worded, critique_templates=[str(critique)], edit_templates=[str(edit)])
    assert {(role, content[0]) for role, content in tune.editor.requests} == {
        ("critic", "C"),
        ("editor", "E"),
    }
    assert all(
        '{"json": 1} {other}' in text for role, text in tune.editor.requests if role == "critic"
    )


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("critique_templates", "{prompt}", r"lacks the placeholders \['attempts'\]"),
        ("edit_templates", "{prompt} {critique}", r"lacks the placeholders \['rules'\]"),
        ("edit_templates", None, "cannot read"),
    ],
)
async def test_a_wrong_template_stops_before_the_first_rollout(
    tune, tmp_path, option, text, message
):
    file = tmp_path / "template.txt"
    if text is not None:
        file.write_text(text)
    phase = ToyPhase(tmp_path, worded)
    with pytest.raises(ConfigError, match=message):
        await tune(phase, **{option: [str(file)]})
    assert not phase.ran


async def test_several_templates_are_drawn_with_the_seed(tune):
    await tune(worded)
    begins = {content[:30] for role, content in tune.editor.requests if role == "critic"}
    assert len(begins) == 3


async def test_rounds_that_leave_rollouts_say_so(tune):
    tuned_ = await tune(worded, rounds=1)
    assert "1 rounds are done and" in tuned_.reason
