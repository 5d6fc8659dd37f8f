"""Editor and critic models: limits, failures, and answers out of the journal."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from agl_core.errors import ConfigError
from agl_core.text import replaced
from agl_core.types import RESERVED_PREFIX, Losses
from agl_prompts._clients import Answer, Client, client_of, estimated_tokens
from agl_prompts._errors import EditorError, EditorsFailedError, EditorsSpentError
from agl_prompts._journal import Journal, JournalEntry
from agl_prompts._options import EditorOptions, Role, StudyOptions

Message = Mapping[str, Any]

_FAILURES: Final = 3
"""Failures in a row that end the phase."""


class _Model:
    """One configured model with its use in this phase."""

    def __init__(self, options: EditorOptions, *, role: Role) -> None:
        self.options = options
        self.role: Role = role
        self.client: Client = client_of(options, role=role)
        self.calls = 0
        self.tokens = 0
        self.one_by_one = asyncio.Lock()
        """Held during a call if tokens are limited: the limit of an answer is what is left."""

    def begin(self, messages: Sequence[Message]) -> int | None:
        """Count a call, and return the limit of tokens of its answer.

        Raises:
            EditorsSpentError: a limit is reached.
        """
        options = self.options
        if options.calls is not None and self.calls >= options.calls:
            raise EditorsSpentError(
                f"{self.role}.calls = {options.calls}: all calls of the model were used"
            )
        granted = options.max_tokens
        if options.tokens is not None:
            left = options.tokens - self.tokens - estimated_tokens(json.dumps(messages))
            if left <= 0:
                raise EditorsSpentError(
                    f"{self.role}.tokens = {options.tokens}: {self.tokens} tokens were used, and "
                    f"the next prompt does not fit in the rest"
                )
            granted = left if granted is None else min(granted, left)
        self.calls += 1
        return granted


class Editors:
    """The editor and the critic of a phase, by role."""

    def __init__(self, options: StudyOptions, *, journal: Journal, losses: Losses) -> None:
        """Load functions and read keys; no request is sent.

        Raises:
            ConfigError: a function does not exist, an address is malformed, or the variable of a
                key is not set.
        """
        self._journal = journal
        self._losses = losses
        self._models: dict[Role, _Model] = {}
        if options.editor is not None:
            self._models["editor"] = self._models["critic"] = _Model(options.editor, role="editor")
        if options.critic is not None:
            self._models["critic"] = _Model(options.critic, role="critic")
        self._sent: Counter[tuple[str, str]] = Counter()
        self._failed = 0
        """Failures in a row of all models."""
        self._failed_by: Counter[str] = Counter()
        """Failures in a row of each role: a critic that answers hides no editor that does not."""
        self.calls: dict[str, int] = {}
        """Number of calls by role, the replayed ones included."""
        self.answered: Counter[str] = Counter()
        self.last_error = ""

    def check(self, roles: Sequence[Role], optimizer: str) -> None:
        """Check that each role has a model.

        Raises:
            ConfigError: it has none.
        """
        missing = [role for role in roles if role not in self._models]
        if missing:
            raise ConfigError(
                f"Optimizer {optimizer!r} needs a model for {' and '.join(missing)}: set "
                f"base_url and model, or function, in [optimizers.{optimizer}.{missing[0]}]"
            )

    async def ask(self, messages: Sequence[Message], role: Role) -> str:
        """Return an answer; see `Study.edit`."""
        model = self._models.get(role)
        if model is None:
            raise ConfigError(f"There is no {role} model: configure it, see EditorOptions")
        digest = sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest()
        number = self._sent[role, digest]
        self._sent[role, digest] += 1
        if model.options.tokens is None:
            edit = await self._edit(model, messages, role, (digest, number))
        else:
            async with model.one_by_one:
                edit = await self._edit(model, messages, role, (digest, number))
        self._record(messages, role, (digest, number), edit)
        if edit.error:
            self._failure(edit.error, role)
        self._failed = self._failed_by[role] = 0
        self.answered[role] += 1
        return edit.answer

    async def _edit(
        self, model: _Model, messages: Sequence[Message], role: Role, at: tuple[str, int]
    ) -> JournalEntry:
        max_tokens = model.begin(messages)
        self.calls[role] = self.calls.get(role, 0) + 1
        edit = self._journal.edits.get((role, *at))
        if edit is None:
            try:
                answer = await model.client.answer(messages, role, max_tokens=max_tokens)
            except EditorError as error:
                edit = JournalEntry(error=str(error), tokens=error.tokens)
            else:
                edit = JournalEntry(answer=replaced(answer.text), tokens=_tokens(answer, messages))
        model.tokens += edit.tokens
        return edit

    def _record(
        self, messages: Sequence[Message], role: Role, at: tuple[str, int], edit: JournalEntry
    ) -> None:
        outcome = {"error": edit.error} if edit.error else {"answer": edit.answer}
        self._journal.write(
            "edit",
            role=role,
            agent=f"{RESERVED_PREFIX}{role}",
            n=at[1],
            messages_sha256=at[0],
            messages=list(messages),
            tokens=edit.tokens,
            **outcome,
        )

    def _failure(self, error: str, role: Role) -> None:
        self._losses.add("prompts_editor_failed")
        self._failed += 1
        self._failed_by[role] += 1
        self.last_error = error
        if max(self._failed, self._failed_by[role]) >= _FAILURES:
            raise EditorsFailedError(f"Editor models failed {_FAILURES} times in a row: {error}")
        raise EditorError(f"The call of the {role} failed: {error}")

    async def close(self) -> None:
        """Close connections; idempotent."""
        for model in set(self._models.values()):
            await model.client.close()


def _tokens(answer: Answer, messages: Sequence[Message]) -> int:
    if answer.tokens is not None:
        return answer.tokens
    return estimated_tokens(json.dumps(messages)) + estimated_tokens(answer.text)
