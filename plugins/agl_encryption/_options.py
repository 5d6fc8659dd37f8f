"""The options of the section ``[encryption]``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Final, Literal, get_args

from agl_stores import LayerOptions
from pydantic import Field, field_validator

SealedField = Literal[
    "messages", "tokens", "attributes", "errors", "rewards", "outputs", "tasks", "prompts"
]
FIELDS: Final[tuple[SealedField, ...]] = get_args(SealedField)
"""Everything that can be encrypted: the default."""


class EncryptionOptions(LayerOptions):
    """What is encrypted in the store, and with which keys."""

    always: ClassVar[bool] = True
    order: ClassVar[int] = -100

    fields: list[SealedField] = Field(default_factory=lambda: list(FIELDS))
    """What is encrypted. ``messages``: messages, tools and answers of model calls; ``tokens``: their
    token ids and log-probabilities, which decode to the messages; ``attributes``: those of spans,
    with tool arguments and results; ``errors``: messages and tracebacks; ``rewards``: the reasons
    of rewards; ``outputs``: results of agents; ``tasks``: inputs, expected answers and metadata of
    tasks; ``prompts``: prompts and the keys of endpoints."""
    keys_file: str | None = None
    """File with one key a line, ``ID = KEY``, or with one key alone."""
    provider: str | None = None
    """``module:function`` or ``file.py:function`` that returns the keys by their ids, such as from a
    key management service. Keys are 32 bytes, or their text."""
    active: str | None = None
    """Id of the key that encrypts; the first of the keys when omitted."""

    @field_validator("keys_file")
    @classmethod
    def _absolute(cls, given: str | None) -> str | None:
        return given and str(Path(given).expanduser().absolute())

    @field_validator("fields", mode="before")
    @classmethod
    def _some(cls, given: Any) -> Any:
        """Refuse an empty list, with which nothing would be encrypted."""
        if given in ([], ()):
            raise ValueError("names nothing to encrypt: remove the section instead")
        return given
