"""Tools of a request that the chat template leaves out of the prompt."""

from __future__ import annotations

from collections import Counter
from typing import Final

from agl_core.types import Finding
from agl_doctor._evidence import Evidence

UNSHOWN: Final = "calls_with_unshown_tools"
"""Cause under which the gateway counts calls with such tools."""


def tools(evidence: Evidence) -> list[Finding]:
    """Return one finding per policy whose chat template leaves out tools of its calls."""
    blind = {policy.name: policy for policy in evidence.policies if not policy.shows_tools}
    findings: list[Finding] = []
    for name, policy in blind.items():
        offering = [each for each in evidence.calls if each.call.policy == name and each.call.tools]
        if not offering:
            continue
        agents = Counter(each.known_as or "no agent" for each in offering)
        listed = ", ".join(f"{agent}: {count}" for agent, count in sorted(agents.items()))
        findings.append(
            Finding(
                check="tools.shown",
                severity="error",
                measured=f"{len(offering)} calls offered tools ({listed}), but the chat template of "
                f"policy {name!r} ({policy.model}) leaves tools out: the model never saw them.",
                fix="Choose a model whose chat template renders tools, put a chat_template.jinja "
                "that does into the model's directory, or describe the tools in the prompt.",
                figures={"policy": name, "model": policy.model, "calls": dict(agents)},
            )
        )
    return findings
