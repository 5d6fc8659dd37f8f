"""Findings on backends: whether token ids decode to the text and answers are not cached."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from agl_core.errors import CaptureError, EngineError
from agl_core.interfaces import Backend, Capabilities
from agl_core.types import Choice, Finding, Policy
from agl_doctor._evidence import Evidence
from agl_doctor._trial import Trial

_CONTROL: Final = re.compile(r"(?:\s|\ufffd|<[^<>]{1,60}>|\[/?[A-Z_]{1,30}\])*")
"""What decoded ids may contain in addition to the text: control tokens and white space."""
_EXCERPT: Final = 80


async def probe(trial: Trial) -> list[Finding]:
    """Request a few tokens from the backend of every trainable policy."""
    return [await _probe(trial, policy) for policy in trial.policies if policy.trainable]


def answering(findings: list[Finding]) -> bool:
    """Return whether every backend answered; a trial makes no sense otherwise."""
    return all(finding.figures.get("answers", True) for finding in findings)


async def _probe(trial: Trial, policy: Policy) -> Finding:
    try:
        found = await trial.probe(policy.name)
    except EngineError as error:
        return Finding(
            check="backend.tokens",
            severity="error",
            measured=str(error),
            fix="Start the server and check its address, key and model name in the section engine.",
            figures={"policy": policy.name, "answers": False},
        )
    except CaptureError as error:
        return Finding(
            check="backend.tokens",
            severity="error",
            measured=str(error),
            fix="Train with an engine whose backend returns token ids and log-probabilities.",
            figures={"policy": policy.name, "answers": True, "token_ids": False},
        )
    return _capable(policy, found)


def _capable(policy: Policy, found: Capabilities) -> Finding:
    where = {
        "processed": "log-probabilities are those after temperature",
        "raw": "log-probabilities count as those before temperature, so only temperature 1 is exact",
        "none": "no log-probabilities",
    }[found.logprobs]
    streams = "also in streams" if found.stream_token_ids else "but not in streams"
    return Finding(
        check="backend.tokens",
        severity="ok" if found.stream_token_ids else "warning",
        measured=f"Policy {policy.name!r}: token ids are given, {streams}; {where}.",
        fix=""
        if found.stream_token_ids
        else "Agents that stream cannot be trained with this backend: let them call it without stream.",
        figures={
            "policy": policy.name,
            "token_ids": found.token_ids,
            "stream_token_ids": found.stream_token_ids,
            "logprobs": found.logprobs,
        },
    )


@dataclass(slots=True)
class _Decoded:
    checked: int = 0
    untold: set[str] = field(default_factory=set[str])
    """Policies whose backend cannot decode its ids."""
    wrong: list[str] = field(default_factory=list[str])


async def decode(evidence: Evidence, backends: Mapping[str, Backend]) -> Finding:
    """Compare each answer's text with its decoded token ids."""
    found = _Decoded()
    for owned in evidence.calls:
        call = owned.call
        for choice in call.choices if owned.answered else ():
            if not choice.token_ids:
                continue
            backend = backends.get(call.policy)
            text = None if backend is None else await backend.detokenize(choice.token_ids)
            if text is None:
                found.untold.add(call.policy)
                continue
            found.checked += 1
            reason = contradiction(choice, text, stopped=bool(call.sampling.stop))
            if reason:
                speaker = repr(owned.agent) if owned.agent else "no agent"
                found.wrong.append(f"Call {call.id!r} of {speaker}: {reason}")
    return _decoding(found)


def _decoding(found: _Decoded) -> Finding:
    figures = {"checked": found.checked, "wrong": len(found.wrong)}
    if found.wrong:
        return Finding(
            check="tokens.decode",
            severity="error",
            measured=f"The token ids of {len(found.wrong)} of {found.checked} answers decode to "
            f"another text. The first: {found.wrong[0]}.",
            fix="Training would reward tokens that were never sampled. Switch off what rewrites "
            "answers between the model and the agent: a tool or reasoning parser, a proxy.",
            figures=figures,
        )
    if found.untold:
        names = ", ".join(repr(name) for name in sorted(found.untold))
        return Finding(
            check="tokens.decode",
            severity="not checked",
            measured=f"The backend of policy {names} cannot say what its token ids stand for.",
            fix="Compare one answer's ids with its text yourself, or use a backend that defines "
            "agl_core.interfaces.Backend.detokenize.",
            figures=figures,
        )
    if not found.checked:
        return Finding(
            check="tokens.decode",
            severity="not checked",
            measured="No answer carried token ids.",
            fix="See backend.tokens and agents.match: ids are requested only for trained agents.",
            figures=figures,
        )
    return Finding(
        check="tokens.decode",
        severity="ok",
        measured=f"The token ids of {found.checked} answers decode to their text.",
        figures=figures,
    )


def contradiction(choice: Choice, decoded: str, *, stopped: bool) -> str:
    """Return why an answer's text contradicts its decoded token ids; empty if it does not.

    The decoded text must contain the reasoning, the text and the names of tool calls. If the answer
    is plain text that no stop string can have cut, it may contain nothing else but control tokens.
    """
    rest = decoded.rstrip("\ufffd")
    for piece in (choice.reasoning, choice.text):
        wanted = piece.strip().rstrip("\ufffd")
        if wanted not in rest:
            return f"its ids decode to {_excerpt(decoded)}, its text is {_excerpt(piece)}"
        rest = rest.replace(wanted, "", 1)
    for call in choice.tool_calls:
        name = str(call.get("function", {}).get("name", ""))
        if name not in rest:
            return f"its ids decode to {_excerpt(decoded)}, which holds no tool call {name!r}"
    parsed = choice.tool_calls or choice.reasoning or stopped
    if not parsed and not _CONTROL.fullmatch(rest):
        return (
            f"its ids also stand for {_excerpt(rest)}, which its text {_excerpt(choice.text)} lacks"
        )
    return ""


def _excerpt(text: str) -> str:
    return repr(text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}...")


def fresh(evidence: Evidence) -> Finding:
    """Report whether every answer was sampled for its request, not taken from a cache."""
    ids = Counter(owned.call.response_id for owned in evidence.calls if owned.call.response_id)
    repeated = sum(count - 1 for count in ids.values())
    figures = {"answers": sum(ids.values()), "repeated": repeated}
    if not ids:
        return Finding(
            check="backend.fresh",
            severity="not checked",
            measured="No answer carried a response id.",
            figures=figures,
        )
    if repeated:
        return Finding(
            check="backend.fresh",
            severity="error",
            measured=f"{repeated} of {sum(ids.values())} answers repeat an earlier answer's "
            f"response id: they come from a cache.",
            fix="Switch off the response cache before or in the backend; prefix caches are fine.",
            figures=figures,
        )
    return Finding(
        check="backend.fresh",
        severity="ok",
        measured=f"{sum(ids.values())} answers have response ids of their own.",
        figures=figures,
    )
