"""Findings on the agents that called models: whether the configuration names them."""

from __future__ import annotations

from collections import Counter
from difflib import get_close_matches

from agl_core.adapters import serving_policy
from agl_core.types import RESERVED_PREFIX, Finding, agent_matches
from agl_doctor._evidence import Evidence


def agents(evidence: Evidence) -> list[Finding]:
    """Return all findings on agent names."""
    return [
        _speakers(evidence),
        *_matches(evidence),
        *_idle_policies(evidence),
        *_unowned(evidence),
    ]


def _speakers(evidence: Evidence) -> Finding:
    counts = Counter(owned.known_as for owned in evidence.calls)
    if not counts:
        return Finding(
            check="agents.speak",
            severity="error",
            measured=f"No model call passed the gateway in {len(evidence.records)} attempts.",
            fix="Let the agent's client use OPENAI_BASE_URL and OPENAI_API_KEY as they are inside "
            "the attempt, or agl.current().llm. A client made at import keeps an older address, "
            "and one of another dialect than OpenAI chat completions is not served.",
        )
    rows: dict[str, dict[str, object]] = {}
    parts: list[str] = []
    for agent, calls in sorted(counts.items()):
        policy = serving_policy(agent, evidence.policies)
        trained = evidence.trains(agent)
        served = f"policy {policy.name!r}" if policy is not None else "no policy"
        role = "trained" if trained else "not trained"
        parts.append(f"{agent or 'no agent'}: {calls} calls, {role} ({served})")
        rows[agent] = {
            "calls": calls,
            "trained": trained,
            "policy": policy.name if policy is not None else None,
        }
    return Finding(
        check="agents.speak",
        severity="ok",
        measured="; ".join(parts) + ".",
        figures={"agents": rows},
    )


def _matches(evidence: Evidence) -> list[Finding]:
    """Return one finding per name or glob of the agents to train."""
    names = [name for name in evidence.agents if not name.startswith(RESERVED_PREFIX)]
    speakers = {owned.known_as for owned in evidence.calls}
    found: list[Finding] = []
    for pattern in evidence.patterns:
        matched = [name for name in names if agent_matches(pattern, name)]
        figures = {"pattern": pattern, "matched": matched, "seen": names}
        if not matched:
            found.append(
                Finding(
                    check="agents.match",
                    severity="error",
                    measured=f"{pattern!r} matches no agent; agents seen: {names or 'none'}.",
                    fix=_nearest(pattern, names),
                    figures=figures,
                )
            )
            continue
        silent = sorted(set(matched) - speakers)
        mute = len(silent) == len(matched)
        says = f"{pattern!r} matches {', '.join(matched)}"
        found.append(
            Finding(
                check="agents.match",
                severity="error" if mute else "ok",
                measured=f"{says}, which ran but made no model call." if mute else f"{says}.",
                fix="Let its calls go through the gateway in the task that runs the agent, or give "
                "more tasks (--tasks) if it rarely runs."
                if mute
                else "",
                figures=figures,
            )
        )
    return found


def _nearest(pattern: str, names: list[str]) -> str:
    near = get_close_matches(pattern, names, n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    return (
        f"{hint}Name agents in 'agents' as they were seen, or name the agent in the program: by "
        f"its framework, or with agl.agent_scope({pattern!r}). An agent that rarely runs may need "
        f"more tasks: --tasks."
    )


def _idle_policies(evidence: Evidence) -> list[Finding]:
    """Report names in frozen policies that no agent has: another policy may serve that agent."""
    trained = set(evidence.patterns)
    idle = {
        pattern: policy.name
        for policy in evidence.policies
        for pattern in policy.agents
        if pattern not in trained and pattern != "*"
        if not any(agent_matches(pattern, name) for name in evidence.agents)
    }
    if not idle:
        return []
    listed = ", ".join(f"{pattern!r} (policy {name!r})" for pattern, name in idle.items())
    return [
        Finding(
            check="agents.policies",
            severity="warning",
            measured=f"Policies name agents that were not seen: {listed}.",
            fix=f"Use the names that were seen ({', '.join(evidence.agents) or 'none'}), or drop them.",
            figures={"unmatched": idle},
        )
    ]


def _unowned(evidence: Evidence) -> list[Finding]:
    """Report calls without an agent, and calls that a framework makes itself."""
    found: list[Finding] = []
    unnamed = [owned for owned in evidence.calls if not owned.agent]
    if unnamed:
        in_tools = sum(owned.in_tool for owned in unnamed)
        where = f", {in_tools} of them while a tool ran" if in_tools else ""
        found.append(
            Finding(
                check="agents.unowned",
                severity="warning",
                measured=f"{len(unnamed)} of {len(evidence.calls)} calls belong to no agent{where}.",
                fix="Name who speaks with agl.agent_scope(name), with trainable=False for a judge "
                "or a tool; pass the framework's callbacks and context to nested agents, and "
                "run threads of your own with contextvars.copy_context().run.",
                figures={"calls": len(unnamed), "in_tools": in_tools},
            )
        )
    own = Counter(o.agent for o in evidence.calls if o.agent.startswith(RESERVED_PREFIX))
    if own:
        listed = ", ".join(f"{name}: {count}" for name, count in sorted(own.items()))
        found.append(
            Finding(
                check="agents.reserved",
                severity="ok",
                measured=f"Calls that a framework makes for itself, never trained: {listed}.",
                figures={"calls": dict(own)},
            )
        )
    return found
