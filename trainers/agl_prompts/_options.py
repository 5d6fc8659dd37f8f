"""Options that all prompt optimisers share."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Role = Literal["editor", "critic"]
"""``critic`` says what is wrong with a prompt's results, ``editor`` writes a new text."""


class EditorOptions(BaseModel):
    """An editor or critic model: an OpenAI-compatible endpoint, or a Python function."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    base_url: str = ""
    """Address of an OpenAI-compatible endpoint, ending in ``/v1``."""
    model: str = ""
    """Name of the model at the endpoint."""
    api_key_env: str | None = None
    """Environment variable with the endpoint's key; no key is sent when None."""
    temperature: float | None = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Sampling temperature; none is sent when None."""
    max_tokens: int | None = Field(default=None, gt=0)
    """Limit of tokens of one answer; none is sent when None."""
    timeout_s: float = Field(default=120.0, gt=0, allow_inf_nan=False)
    """Time limit of one request."""
    calls: int | None = Field(default=None, gt=0)
    """Limit of calls in a phase; the phase ends before the call that exceeds it."""
    tokens: int | None = Field(default=None, gt=0)
    """Limit of tokens of prompts and answers in a phase, as the endpoint counts them; estimated at
    four characters per token if the endpoint does not report usage."""
    function: str = ""
    """``module:attribute`` or ``file.py:attribute`` of a function that replaces the endpoint:
    ``function(messages, role) -> str``, sync or async. Messages have the form of chat
    completions."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if bool(self.function) == bool(self.base_url):
            raise ValueError("set either base_url with model, or function")
        if self.base_url and not self.model:
            raise ValueError("set model, the name of the model at base_url")
        return self


class StudyOptions(BaseModel):
    """Base of the options of prompt optimisers."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    editor: EditorOptions | None = None
    """The model that writes new texts; required by optimisers that edit."""
    critic: EditorOptions | None = None
    """The model that criticises results, with the keys of `editor`; the editor itself when None."""
    max_chars: int = Field(default=8000, gt=0)
    """Largest number of characters of a text; a longer one is refused. An incumbent that is longer
    already may not grow."""
    samples: int = Field(default=1, gt=0)
    """Rollouts per candidate and task in an evaluation; the task's score is their mean."""
    max_refused: int = Field(default=20, gt=0)
    """Number of refused candidates in a row after which the phase ends."""
