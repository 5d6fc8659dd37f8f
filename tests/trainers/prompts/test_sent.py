"""The findings of ``agl doctor`` on prompts that the agents do not send."""

from __future__ import annotations

import pytest
from agl_prompts import is_sent
from agl_prompts._sent import sent

from agl_core.config.loader import resolve
from agl_core.types import Task
from tests.trainers.prompts.test_captured_learn import call, head, record

TEXT = "You are the writer of {item}. Write one sentence."


def attempts(*heads, agent="writer"):
    return [
        record(call(head(text), agent=agent), task=Task(id=str(number), input={"item": "tea"}))
        for number, text in enumerate(heads)
    ]


def findings(records, **prompt):
    config = resolve({"prompts": {"p": {"agents": ["writer"], **prompt}, "other": "Untuned"}})
    return [(each.check, each.severity, each.measured, each.fix) for each in sent(records, config)]


def of(item):
    return TEXT.replace("{item}", item)


def test_a_captured_prompt_that_every_call_sends():
    [(check, severity, measured, fix)] = findings(attempts(of("tea"), of("rice")), captured=True)
    assert (check, severity, fix) == ("prompts.learned", "ok", "")
    assert "in 2 of 2 calls of ['writer']" in measured
    assert "1 placeholder" in measured or "placeholders: " in measured


def test_a_captured_prompt_that_a_call_lacks():
    records = [*attempts(of("tea"), of("rice")), record(call([{"role": "user", "content": "x"}]))]
    [(check, severity, measured, fix)] = findings(records, captured=True)
    assert (check, severity) == ("prompts.learned", "warning")
    assert "2 of 3 calls" in measured
    assert "prompts_not_found" in fix


def test_a_captured_prompt_that_cannot_be_learned():
    records = attempts("Sell more of everything.", "Nobody reads poems about water.")
    [(check, severity, measured, _)] = findings(records, captured=True)
    assert (check, severity) == ("prompts.learned", "error")
    assert "Sell more" in measured
    assert findings(attempts("x", agent="planner"), captured=True)[0][1] == "error"


@pytest.mark.parametrize(
    ("heads", "severity", "found"),
    [
        ((of("tea"), of("figs")), "ok", 2),
        ((of("tea"), "The program's own."), "warning", 1),
        (("The program's own.", "Another"), "error", 0),
    ],
)
def test_a_template_that_the_program_reads_or_overrides(heads, severity, found):
    [(check, level, measured, fix)] = findings(attempts(*heads), text=TEXT)
    assert (check, level) == ("prompts.sent", severity)
    assert f"{found} of 2 calls" in measured
    assert ("agl.resource('p')" in fix) == (severity != "ok")


def test_without_attempts_or_tuned_prompts_there_is_nothing_to_say():
    assert not findings([], captured=True)
    assert not list(sent(attempts("x"), resolve({"prompts": {"other": "Untuned"}})))


def test_a_text_is_looked_for_in_every_message_and_part():
    parts = [{"type": "text", "text": f"Hello. {of('tea')}"}, {"type": "image_url"}]
    assert is_sent(TEXT, [{"role": "system", "content": "x"}, {"role": "user", "content": parts}])
    assert not is_sent(TEXT, [{"role": "user", "content": None}])
