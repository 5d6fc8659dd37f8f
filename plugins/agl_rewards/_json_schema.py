"""A reward for an answer that is JSON and fits a schema."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import fastjsonschema
from pydantic import Field

from agl_core.config import validate
from agl_core.errors import ConfigError
from agl_core.interfaces import AttemptRecord
from agl_core.types import Score, Task
from agl_rewards._answer import ABSENT, AnswerOptions, absent, answer

_FENCE = re.compile(r"^\s*```[A-Za-z]*\s*\n(.*?)\n?\s*```\s*$", re.DOTALL)

_DEFINITION_ERRORS = (
    fastjsonschema.JsonSchemaDefinitionException,
    AttributeError,
    TypeError,
    re.error,
)


class JsonSchemaOptions(AnswerOptions):
    """Options of the reward ``json_schema``."""

    definition: dict[str, Any] | str = Field(alias="schema")
    """The schema (draft 4, 6 or 7), or the path of a JSON file that holds it."""
    unfence: bool = True
    """Accept an answer that stands in one Markdown code fence."""


class JsonSchema:
    """A reward: 1.0 if the answer is JSON (or already a value) that fits the schema, else 0.0.

    The reason of a 0.0 is the message of the JSON parser or of the validator.
    """

    def __init__(self, **options: Any) -> None:
        """Compile the schema; references to other hosts are refused, not fetched.

        Raises:
            ConfigError: the schema cannot be read or is not a schema.
        """
        self._options = validate(JsonSchemaOptions, options, where="json_schema")
        schema = self._options.definition
        if isinstance(schema, str):
            schema = _read_schema(Path(schema))
        remote: dict[str, Any] = dict.fromkeys(("http", "https", "ftp", "file"), _refuse)
        try:
            compiled = fastjsonschema.compile(schema, handlers=remote, use_default=False)
        except _DEFINITION_ERRORS as error:
            raise ConfigError(f"Reward 'json_schema': the schema is wrong: {error}") from error
        self._validate = cast("Any", compiled)

    def __call__(self, task: Task, output: Any, attempt: AttemptRecord) -> Score:
        del task, attempt
        found = answer(output, self._options.field)
        if found is ABSENT:
            return absent(self._options.field)
        try:
            value = self._parse(found) if isinstance(found, str) else found
            _require_finite(value)
            self._validate(value)
        except fastjsonschema.JsonSchemaValueException as error:
            return Score(0.0, str(error))
        except (ValueError, RecursionError) as error:
            return Score(0.0, f"the answer is not JSON: {error}")
        return Score(1.0)

    def _parse(self, text: str) -> Any:
        fenced = _FENCE.match(text) if self._options.unfence else None
        return json.loads(fenced[1] if fenced else text, parse_constant=_no_constant)


def _read_schema(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"Reward 'json_schema': cannot read the schema file {str(path)!r}: {error}"
        ) from error


def _refuse(uri: str) -> NoReturn:
    raise fastjsonschema.JsonSchemaDefinitionException(
        f"it refers to {uri!r}: put what is referred to under 'definitions'"
    )


def _require_finite(value: Any) -> None:
    """Refuse numbers that JSON does not have; Python reads ``1e999`` as infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"it holds the number {value}, which is not finite")
    if isinstance(value, dict):
        value = list(cast("dict[Any, Any]", value).values())
    if isinstance(value, (list, tuple)):
        for each in cast("Sequence[Any]", value):
            _require_finite(each)


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")
