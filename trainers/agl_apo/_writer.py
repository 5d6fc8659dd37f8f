"""Requests to critic and editor: from a candidate's attempts to a new text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agl_prompts import HEADS, EditorError, Role, Seen, Study, describe, new_text, shortened
from msgspec.structs import replace

from agl_apo._options import ApoOptions
from agl_apo._templates import Templates, fill
from agl_core.interfaces import Candidate, TunedPrompt
from agl_core.types import PromptTemplate, any_matches


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedPrompt:
    """A text that an editor wrote for one prompt."""

    prompt: str
    text: str
    why: str
    """The critique."""


class PromptWriter:
    """Asks the critic what is wrong with a prompt, and the editor for a better text."""

    def __init__(self, study: Study, options: ApoOptions, templates: Templates) -> None:
        self._study = study
        self._options = options
        self._templates = templates

    async def edit(
        self, texts: Candidate, seen: Sequence[Seen], *, number: int
    ) -> EditedPrompt | None:
        """Return a new text for one prompt of a candidate; None if critic or editor gave nothing.

        Args:
            texts: The candidate.
            seen: Its results on some training tasks.
            number: Number of the edit in the phase; it chooses the prompt and the templates.

        Raises:
            StudyEndedError: the editors failed several times, or are used up.
        """
        if not seen:
            return None
        prompt = self._prompt(seen, number)
        rng = self._study.random("templates", number)
        shared = {"what": _what(prompt), "prompt": self._study.whole(texts)[prompt.name]}
        critique = await self._ask(
            "critic",
            rng.choice(self._templates.critiques),
            attempts=_attempts(seen, prompt, chars=self._options.feedback_chars),
            **shared,
        )
        if not critique:
            return None
        answer = await self._ask(
            "editor",
            rng.choice(self._templates.edits),
            critique=shortened(critique, self._options.critique_chars),
            rules=_rules(prompt, most=max(self._options.max_chars, len(prompt.text))),
            **shared,
        )
        return (
            EditedPrompt(prompt=prompt.name, text=new_text(answer), why=critique)
            if answer
            else None
        )

    def _prompt(self, seen: Sequence[Seen], number: int) -> TunedPrompt:
        """Return the prompt that is edited: each in turn, without those whose agents said nothing."""
        prompts = list(self._study.prompts.values())
        turn = number % len(prompts)
        ordered = [*prompts[turn:], *prompts[:turn]]
        return next((each for each in ordered if _speaks(seen, each)), ordered[0])

    async def _ask(self, role: Role, template: PromptTemplate, **values: str) -> str:
        """Return the answer, or "" if the call failed, which the study counts."""
        message = {"role": "user", "content": fill(template, **values)}
        try:
            return (await self._study.edit([message], role=role)).strip()
        except EditorError:
            return ""


def _speaks(seen: Sequence[Seen], prompt: TunedPrompt) -> bool:
    return any(any_matches(prompt.agents, call.agent) for each in seen for call in each.calls)


def _what(prompt: TunedPrompt) -> str:
    agents = ", ".join(prompt.agents)
    if prompt.tool:
        return f"the description of the tool {prompt.tool} (agent: {agents})"
    return f"the system prompt (agent: {agents})"


def _attempts(seen: Sequence[Seen], prompt: TunedPrompt, *, chars: int) -> str:
    """Describe results, the lowest score first, in `chars` characters together."""
    share = chars // len(seen)
    ordered = sorted(seen, key=lambda each: each.score)
    return "\n\n".join(
        f"Attempt {number}\n{describe(_headless(each), agents=prompt.agents, max_chars=share)}"
        for number, each in enumerate(ordered, 1)
    )


def _headless(seen: Seen) -> Seen:
    """Return a result without system messages: the critic gets the prompt once, by itself."""
    calls = tuple(
        replace(call, messages=[each for each in call.messages if each.get("role") not in HEADS])
        for call in seen.calls
    )
    return replace(seen, calls=calls)


def _rules(prompt: TunedPrompt, *, most: int) -> str:
    """Return what a new text must satisfy, and how the editor answers."""
    rules = [f"Write at most {most} characters."]
    if prompt.placeholders:
        names = ", ".join(f"{{{name}}}" for name in sorted(prompt.placeholders))
        rules.append(
            f"Keep these placeholders, which are replaced by values later, and add no others: "
            f"{names}."
        )
    else:
        rules.append("Write no name in single braces, such as {name}.")
    rules.append(
        "Copy no single task and no answer from the attempts. Answer with the complete new text in "
        "one block between two lines of three backticks, and nothing else."
    )
    return " ".join(rules)
