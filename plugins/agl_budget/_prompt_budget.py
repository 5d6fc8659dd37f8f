"""The budget of an agent's prompts, for integrations and agents."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from agl_budget._plan import FittedPrompt, Message, PromptSearch, fit, untouched
from agl_core import semconv
from agl_core.errors import ConfigError, DeadlineError, EngineError
from agl_core.interfaces import COUNT_PATH, NOT_COUNTED, PROMPT_REFUSED, CountAnswer, Counted
from agl_core.text import url_quoted
from agl_core.threads import in_thread
from agl_core.tracing import AttemptContext, active, current_scope, guarded

Tool = Mapping[str, Any]
"""A tool as a client sends it."""
CountTokens = Callable[[Sequence[Message], Sequence[Tool]], "int | Awaitable[int]"]
"""Returns the tokens of messages and tools, both in OpenAI's form."""

_SHARE: Final = 0.75
"""Default budget as a share of the model's context; the rest is for the answer."""


@dataclass(frozen=True, slots=True)
class _Question:
    """The attempt and agent of a prompt."""

    context: AttemptContext | None
    agent: str
    uncounted: bool

    def at_gateway(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Counted | None:
        assert self.context is not None
        return _count_at_gateway(self.context, self.agent, messages, tools)


class PromptBudget:
    """Cuts prompts to a number of tokens, counted with the chat template of their model.

    System messages and the last turn stay: the last user message, and the last message with the
    tool calls that it answers. Whole messages are removed from the middle, the oldest first and a
    tool's result together with its call; if that is not enough, the middle of the longest texts is
    removed. Tool calls are never changed. Equal prompts get equal cuts, and a prompt that fits is
    not changed.

    In a rollout the gateway counts, for the policy of the agent, and a span named
    ``agl.prompt_cut`` records the cut. Outside a rollout nothing is cut without `count`.
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        *,
        agent: str | None = None,
        count: CountTokens | None = None,
    ) -> None:
        """Set a budget; one object can be used for any number of prompts, threads and tasks.

        Args:
            max_tokens: Most tokens of a prompt with its tools. None: the agent's entry in the run's
                ``prompt_budgets``, else three quarters of the model's context.
            agent: The agent of the prompts; None: the agent of the current scope.
            count: Counts instead of the gateway, also outside a rollout; may be async for `afit`.

        Raises:
            ConfigError: the budget is not a positive number.
        """
        if max_tokens is not None and max_tokens < 1:
            raise ConfigError(f"A prompt budget of {max_tokens} tokens holds no prompt: give more")
        self.max_tokens = max_tokens
        self._agent = agent
        self._count = count

    def fit(self, messages: Sequence[Message], *, tools: Sequence[Tool] = ()) -> list[Message]:
        """Return the messages, in OpenAI's form, cut to the budget.

        Raises:
            ContextOverflowError: system messages, tools and the last turn alone exceed the budget.
            ConfigError: tokens cannot be counted, no budget is known, or an event loop runs in this
                thread.
            EngineError: the gateway does not answer.
        """
        return self.plan(messages, tools=tools).messages

    async def afit(
        self, messages: Sequence[Message], *, tools: Sequence[Tool] = ()
    ) -> list[Message]:
        """As `fit`, for coroutines."""
        return (await self.aplan(messages, tools=tools)).messages

    def plan(self, messages: Sequence[Message], *, tools: Sequence[Tool] = ()) -> FittedPrompt:
        """As `fit`, with the positions of the remaining messages, for frameworks' message types."""
        question = self._question()
        if question.uncounted:
            return untouched(messages)
        search = self._search(messages, question)
        try:
            prompt = next(search)
            while True:
                prompt = search.send(self._counted(question, prompt, tools))
        except StopIteration as found:
            return self._recorded(found.value, question)

    async def aplan(
        self, messages: Sequence[Message], *, tools: Sequence[Tool] = ()
    ) -> FittedPrompt:
        """As `plan`, for coroutines."""
        question = self._question()
        if question.uncounted:
            return untouched(messages)
        search = self._search(messages, question)
        try:
            prompt = next(search)
            while True:
                prompt = search.send(await self._acounted(question, prompt, tools))
        except StopIteration as found:
            return self._recorded(found.value, question)

    def _question(self) -> _Question:
        context = active()
        agent = self._agent
        if agent is None and context is not None:
            scope = current_scope()
            agent = scope.agent if scope is not None else None
        uncounted = self._count is None and (context is None or not context.llm.base_url)
        return _Question(context, agent or "", uncounted)

    def _search(self, messages: Sequence[Message], question: _Question) -> PromptSearch:
        def budget_of(counted: Counted) -> int:
            return self._budget(question, counted.limit)

        return fit(messages, budget_of, agent=question.agent)

    def _budget(self, question: _Question, limit: int | None) -> int:
        wanted = self.max_tokens
        if wanted is None and question.context is not None:
            name = question.context.aliases.names().get(question.agent, question.agent)
            wanted = question.context.rollout.prompt_budget(name)
        if wanted is not None:
            return wanted if limit is None else min(wanted, limit - 1)
        if limit is None:
            raise ConfigError(
                f"Agent {question.agent!r} has no prompt budget, and the length of its model's "
                f"context is not known: give PromptBudget max_tokens, or set prompt_budgets"
            )
        return int(limit * _SHARE)

    def _counted(
        self, question: _Question, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> Counted | None:
        if self._count is None:
            return question.at_gateway(messages, tools)
        tokens = self._count(messages, tools)
        if not isinstance(tokens, int):
            if inspect.iscoroutine(tokens):
                tokens.close()
            raise ConfigError(
                f"The count given to PromptBudget gave {tokens!r}: await afit for one that is async"
            )
        return Counted(tokens)

    async def _acounted(
        self, question: _Question, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> Counted | None:
        if self._count is None:
            outcome = await in_thread(question.at_gateway, messages, tools, name="agl-count")
            if outcome.error is not None:
                raise outcome.error
            return outcome.value
        tokens = self._count(messages, tools)
        return Counted(tokens if isinstance(tokens, int) else await tokens)

    def _recorded(self, fitted: FittedPrompt, question: _Question) -> FittedPrompt:
        if fitted.cut and question.context is not None:
            _record(question.context, fitted, agent=question.agent)
        return fitted


@guarded()
def _record(context: AttemptContext, fitted: FittedPrompt, *, agent: str) -> None:
    cut = {
        "agent": agent,
        "budget": fitted.budget,
        "tokens_before": fitted.tokens_before,
        "tokens_after": fitted.tokens,
        "messages_cut": fitted.messages_cut,
        "characters_cut": fitted.characters_cut,
    }
    context.recorder.point(semconv.AGL_PROMPT_CUT, attributes={semconv.AGL_PROMPT_CUT: cut})


_OK: Final = 200
_BAD_REQUEST: Final = 400
_TIMEOUT_S: Final = 60.0


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    code: Any = None


class _Refusal(msgspec.Struct, frozen=True):
    error: _Error = _Error()


def _count_at_gateway(
    context: AttemptContext, agent: str, messages: Sequence[Message], tools: Sequence[Any]
) -> Counted | None:
    """Count a prompt at the attempt's gateway; blocks.

    Returns:
        None if the model's chat template refuses the messages.

    Raises:
        ConfigError: an event loop runs in this thread, or the gateway's backend cannot count.
        DeadlineError: the attempt has no time left.
        EngineError: the gateway or its backend does not answer.
    """
    _refuse_on_loop()
    asked: dict[str, Any] = {"model": context.llm.model, "messages": list(messages)}
    if tools:  # some chat templates write a preamble even for an empty list
        asked["tools"] = list(tools)
    url = urlsplit(context.llm.base_url)
    path = url.path.rstrip("/") + COUNT_PATH
    seconds = min(context.seconds_left(), _TIMEOUT_S)
    if seconds <= 0:
        raise DeadlineError("The attempt's deadline has passed: its prompt was not counted")
    secure = url.scheme == "https"
    connection = (HTTPSConnection if secure else HTTPConnection)(url.netloc, timeout=seconds)
    try:
        # Not msgspec, which refuses lone surrogates: programs that cut text may send them.
        connection.request("POST", path, json.dumps(asked).encode(), _headers(context, agent))
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, HTTPException) as error:
        raise EngineError(
            f"The gateway at {url.netloc} did not count a prompt's tokens: {str(error) or type(error).__name__}"
        ) from error
    finally:
        connection.close()
    return _read(answer.status, body, agent)


def _read(status: int, body: bytes, agent: str) -> Counted | None:
    try:
        if status == _OK:
            given = msgspec.json.decode(body, type=CountAnswer)
            return Counted(given.count, given.max_model_len)
        refusal = msgspec.json.decode(body, type=_Refusal).error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EngineError(f"The gateway answered no count but {body[:200]!r}") from error
    if status == _BAD_REQUEST and refusal.code == PROMPT_REFUSED:
        return None
    if status == NOT_COUNTED:
        raise ConfigError(
            f"The tokens of agent {agent!r} cannot be counted: {refusal.message}. Give PromptBudget a "
            f"count of your own"
        )
    raise EngineError(f"The gateway did not count a prompt's tokens: {status} {refusal.message}")


def _headers(context: AttemptContext, agent: str) -> Mapping[str, str]:
    identity = {
        semconv.HEADER_ROLLOUT: context.rollout.id,
        semconv.HEADER_ATTEMPT: context.attempt.id,
        semconv.HEADER_AGENT: agent,
        semconv.HEADER_ALIAS: context.aliases.names().get(agent, ""),
    }
    headers = {name: url_quoted(value) for name, value in identity.items() if value}
    return {
        **headers,
        "Authorization": f"Bearer {context.llm.api_key}",
        "Content-Type": "application/json",
    }


def _refuse_on_loop() -> None:
    """Refuse to block an event loop: the gateway may run on it and could not answer."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigError(
        "PromptBudget.fit would block the event loop that the gateway answers on: await "
        "PromptBudget.afit here, or call fit in a thread"
    )
