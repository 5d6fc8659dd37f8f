"""Whether programs send the prompts of a run: what ``agl doctor`` and a phase check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from agl_core.config import PromptConfig, RunConfig
from agl_core.errors import ConfigError
from agl_core.interfaces import AgentCall, AttemptRecord, JsonObjects
from agl_core.types import RESERVED_PREFIX, Finding, any_matches
from agl_prompts._captured import CapturedPrompt, text_of
from agl_prompts._captured_learn import learn
from agl_prompts._captured_pattern import Pattern

__all__ = ["is_sent", "sent"]


def is_sent(text: str, messages: JsonObjects) -> bool:
    """Return whether a message has the text, with any values for its placeholders.

    The space around the text does not count.
    """
    pattern = Pattern(text.strip())
    return any(pattern.find(each) is not None for each in _texts(messages))


def sent(records: Sequence[AttemptRecord], config: RunConfig) -> Iterator[Finding]:
    """Yield a finding for each prompt with agents: a check of ``agl doctor``."""
    for name, prompt in config.prompts.items():
        if records and prompt.agents:
            calls = list(_calls(records, prompt.agents))
            if prompt.captured:
                yield _captured(name, prompt, records, calls)
            else:
                yield _read(name, prompt, calls)


def _captured(
    name: str, prompt: PromptConfig, records: Sequence[AttemptRecord], calls: Sequence[AgentCall]
) -> Finding:
    check = "prompts.learned"
    try:
        learned = learn(records, name=name, agents=prompt.agents, tool=prompt.tool)
    except ConfigError as error:
        return Finding(
            check=check,
            severity="error",
            measured=f"The text cannot be learned: {error}.",
            fix="Let the agents send one text that differs between calls only in short values.",
        )
    replaced = CapturedPrompt(learned)
    found = sum(_finds(replaced, call) for call in calls)
    names = ", ".join(sorted(learned.placeholders)) or "none"
    return Finding.of(
        check,
        "ok" if found == len(calls) else "warning",
        f"prompts.{name} was found in {found} of {len(calls)} calls of {[*prompt.agents]}; its "
        f"text has {len(learned.template)} characters, placeholders: {names}.",
        fix="Candidates do not reach the other calls, which the run counts as prompts_not_found: "
        "let the program send the same text in each call.",
        figures={"prompt": name, "calls": len(calls), "found": found},
    )


def _read(name: str, prompt: PromptConfig, calls: Sequence[AgentCall]) -> Finding:
    found = sum(is_sent(prompt.text or "", call.messages) for call in calls)
    severity = "ok" if calls and found == len(calls) else "warning" if found else "error"
    return Finding.of(
        "prompts.sent",
        severity,
        f"prompts.{name} is in {found} of {len(calls)} calls of {[*prompt.agents]}.",
        fix=f"Tuning it changes only calls that contain it: send what agl.resource({name!r}) "
        f"returns, and do not replace it afterwards; or set captured = true.",
        figures={"prompt": name, "calls": len(calls), "found": found},
    )


def _finds(prompt: CapturedPrompt, call: AgentCall) -> bool:
    if prompt.tool:
        return prompt.in_tools(call.record.tools) is not None
    return prompt.in_messages(call.messages) is not None


def _calls(records: Iterable[AttemptRecord], agents: Sequence[str]) -> Iterator[AgentCall]:
    for record in records:
        for call in record.calls:
            name = call.record.known_as
            if not name.startswith(RESERVED_PREFIX) and any_matches(agents, name):
                yield call


def _texts(messages: JsonObjects) -> Iterator[str]:
    for message in messages:
        content: Any = message.get("content")
        if isinstance(content, str):
            yield content
        elif isinstance(content, list):
            parts = cast("list[Any]", content)
            yield from (text for text in map(text_of, parts) if text is not None)
