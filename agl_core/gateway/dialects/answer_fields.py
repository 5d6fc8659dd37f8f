"""OpenAI chat completions: the fields of an answer that the gateway reads."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, cast

import msgspec

from agl_core.gateway.dialects.surrogates import repaired
from agl_core.gateway.dialects.tool_calls import CallPart, Function
from agl_core.interfaces import TokenUsage

__all__ = ["Fields", "Logprobs", "Message", "Row", "read_loosely"]


class Logprob(msgspec.Struct, gc=False):
    """One sampled token's entry; its text, bytes and alternatives are skipped."""

    logprob: float


class Logprobs(msgspec.Struct):
    content: list[Logprob] | None = None


class Audio(msgspec.Struct):
    """Speech; its data is skipped."""

    id: str | None = None
    transcript: str | None = None


class Message(msgspec.Struct):
    """A ``message``, or a part of one in a ``delta``."""

    content: str | list[Any] | None = None
    """Text, or with some servers a list of parts."""
    reasoning_content: str | list[Any] | None = None
    reasoning: str | list[Any] | None = None
    refusal: str | None = None
    tool_calls: list[CallPart] | None = None
    function_call: Function | None = None
    audio: Audio | None = None


class Row(msgspec.Struct):
    """One of the ``choices``."""

    index: int | None = None
    message: Message | None = None
    delta: Message | None = None
    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class Fields(msgspec.Struct):
    """A whole answer, or a chunk of one."""

    id: str | None = None
    model: str | None = None
    choices: list[Row] | None = None
    prompt_token_ids: list[int] | None = None
    usage: TokenUsage | None = None


_AT: Final = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_MOST_FAULTS: Final = 32
_LONGEST: Final = 300
"""Digits of an integer."""


def read_loosely(data: bytes) -> tuple[Fields, Any, list[str]]:
    """Read an answer some of whose fields are not what they should be.

    What cannot be read is left out and named: its place, what was expected and what stood there.

    Returns:
        The fields, the whole document, and the faults.

    Raises:
        msgspec.DecodeError: it is no JSON object.
    """
    faults: list[str] = []
    # Numbers that are none stay, so that they can be named.
    text = repaired(data, numbers=False)
    try:
        document: Any = json.loads(
            text, parse_constant=_NoNumber, parse_float=_float, parse_int=_int
        )
    except (ValueError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
    if not isinstance(document, dict):
        kind = type(document).__name__
        raise msgspec.ValidationError(f"Expected `object`, got `{kind}`")
    fields = cast("dict[str, Any]", document)
    return _converted(fields, faults), fields, faults


class _NoNumber:
    """A number that no field can hold: NaN, an infinity, or one of far too many digits."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _float(text: str) -> Any:
    value = float(text)
    return value if math.isfinite(value) else _NoNumber(text)


def _int(text: str) -> Any:
    return int(text) if len(text) <= _LONGEST else _NoNumber(text)


def _converted(document: dict[str, Any], faults: list[str]) -> Fields:
    wanted = {name: document[name] for name in Fields.__struct_fields__ if name in document}
    named: set[str] = set()
    for _ in range(_MOST_FAULTS):
        try:
            return msgspec.convert(wanted, Fields)
        except msgspec.ValidationError as error:
            found = _AT.match(str(error))
            assert found is not None
            path = found["path"] or ""
            value = _leave_out(wanted, path, what=found["what"])
            if path not in named:
                faults.append(f"{path.lstrip('.')}: {found['what']}: {value!r:.80}")
            named.add(path)
    faults.append("and more")
    return Fields()


def _leave_out(document: dict[str, Any], path: str, *, what: str) -> Any:
    """Remove the value that an error names, or the object that holds it; returns the value."""
    steps: list[str | int] = [int(at) if at else name for name, at in _STEP.findall(path)]
    owners: list[Any] = [document]
    for step in steps[:-1]:
        owners.append(owners[-1][step])
    value = owners[-1][steps[-1]]
    for owner, step in zip(reversed(owners), reversed(steps), strict=True):
        if isinstance(step, int):
            if "`object" in what and not isinstance(owner[step], dict):
                owner[step] = {}
                break
        elif owner[step] is not None:
            owner[step] = None
            break
    return value
