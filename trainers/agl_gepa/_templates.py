"""Requests to the editor that name what a new text must keep."""

from __future__ import annotations

from collections.abc import Mapping

from gepa.strategies.instruction_proposal import InstructionProposalSignature

from agl_core.interfaces import TunedPrompt


def templates(prompts: Mapping[str, TunedPrompt], template: str) -> dict[str, str] | None:
    """Return the template of each prompt; None if all have gepa's own.

    Args:
        prompts: The prompts to tune.
        template: The user's template; empty for gepa's.
    """
    base = template or InstructionProposalSignature.default_prompt_template
    found = {name: base + _note(prompt) for name, prompt in prompts.items()}
    own = InstructionProposalSignature.default_prompt_template
    return None if all(text == own for text in found.values()) else found


def _note(prompt: TunedPrompt) -> str:
    notes: list[str] = []
    if prompt.tool:
        notes.append(
            f"The instructions are the description of the tool {prompt.tool!r}, from which the "
            f"assistant decides when and how to call it. Write a new description."
        )
    if prompt.placeholders:
        names = ", ".join(f"{{{name}}}" for name in sorted(prompt.placeholders))
        notes.append(
            f"A program fills in placeholders before the assistant sees the text. Keep these as "
            f"they are and add no others: {names}"
        )
    return "".join(f"\n\n{note}" for note in notes)
