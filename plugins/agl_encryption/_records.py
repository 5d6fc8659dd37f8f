"""What of each record is encrypted, and where the encrypted value is stored.

A span keeps its ids, times, numbers, names and statuses; the rest of it is one encrypted value in
its attributes. A task's content is in its input, the text of a failure in its message, a prompt's
in its template.

The decrypted value of a span is the encoded span, which begins with a byte from 0x80 on. Where only
some of its fields are encrypted, it is a byte with the bits of these and an encoded span with only
their content. Earlier versions put the byte before every span.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec.msgpack import Ext
from msgspec.structs import replace

from agl_core.errors import StoreError
from agl_core.semconv import (
    GEN_AI_REQUEST_MODEL,
    GEN_AI_USAGE_INPUT_TOKENS,
    GEN_AI_USAGE_OUTPUT_TOKENS,
)
from agl_core.store import SPANS, Codec, encode, encode_span, json_value
from agl_core.text import exact_bytes
from agl_core.types import (
    LLM,
    Attempt,
    Choice,
    Failure,
    ModelCall,
    PromptTemplate,
    Resources,
    Rollout,
    Span,
    Task,
)
from agl_encryption._cipher import Cipher, as_text, from_text, key_id
from agl_encryption._errors import EncryptionError
from agl_encryption._options import FIELDS

T = TypeVar("T")

_SEALED: Final = "agl.sealed"
"""Attribute of a span with its encrypted value."""
_OF_SPANS: Final = ("messages", "tokens", "attributes", "errors", "rewards")
"""Fields of spans, in the order of their bits in an encrypted value; new ones come last."""
_ALL_OF_SPANS: Final = (1 << len(_OF_SPANS)) - 1
_NO_TOKENS: Final = Choice()
_MOST_TASKS: Final = 1000
_LONGEST_TASK: Final = 4096
"""Bytes of a task that is kept in memory."""


class _Value(msgspec.Struct, array_like=True):
    value: Any


class _Failed(msgspec.Struct, array_like=True):
    message: str
    traceback: str


class _Template(msgspec.Struct, array_like=True):
    template: str
    known: str | None


_VALUES: Final = Codec(_Value, name="value")
_TASKS: Final = Codec(Task)
_FAILURES: Final = Codec(_Failed, name="failure")
_TEMPLATES: Final = Codec(_Template, name="prompt")


class Sealing:
    """Encrypts and decrypts the records of a store."""

    def __init__(
        self, cipher: Cipher, fields: Collection[str] = FIELDS, *, for_people: bool = False
    ) -> None:
        """Configure what is encrypted.

        Args:
            cipher: Encrypts and decrypts.
            fields: `EncryptionOptions.fields`.
            for_people: A text stands for what cannot be decrypted, which is otherwise an error.
        """
        self.cipher = cipher
        self._fields = frozenset(fields) if cipher.keys is not None else frozenset[str]()
        self._of_spans = frozenset(_OF_SPANS) & self._fields
        self._open_of_spans = frozenset(_OF_SPANS) - self._of_spans
        bits = (1 << n for n, name in enumerate(_OF_SPANS) if name in self._fields)
        self._mask = bytes([sum(bits)])
        self._for_people = for_people
        self._tasks: dict[bytes, bytes] = {}
        """Encoded tasks by their places and encrypted values."""

    def for_people(self) -> Sealing:
        """Return one that lets a text stand for what cannot be decrypted."""
        return Sealing(self.cipher, self._fields or FIELDS, for_people=True)

    def seal_spans(self, spans: Sequence[Span]) -> list[Span]:
        if not self._of_spans or not spans:
            return list(spans)
        places = _places(spans)
        if self._open_of_spans:
            contents = (encode_span(_without(span, self._open_of_spans)) for span in spans)
            values = self.cipher.seal_all((self._mask + each for each in contents), places)
            return list(map(self._partly, spans, values))
        try:
            values = self.cipher.seal_all(_contents(spans), places)
        except (UnicodeEncodeError, OverflowError, RecursionError, NotImplementedError):
            values = self.cipher.seal_all(map(encode_span, spans), places)
        return list(map(_bare, spans, values))

    def _partly(self, span: Span, value: bytes) -> Span:
        bare = _without(span, self._of_spans)
        if bare.attributes:  # one that contains itself must not cost the encrypted value
            bare = SPANS.decode(encode_span(bare))
        return replace(bare, attributes={**bare.attributes, _SEALED: value})

    def open_spans(self, spans: Sequence[Span]) -> list[Span]:
        sealed = [span.attributes.get(_SEALED) for span in spans]
        places = _places(spans)
        values = self.cipher.all_opened(sealed, places)
        opened: list[Span] = []
        for number, (span, value) in enumerate(zip(spans, values, strict=True)):
            if value is not None:
                opened.append(_filled(span, value))
            elif key_id(sealed[number]) is not None:
                opened.append(self._open_span(span, places[number]))
            else:
                opened.append(span)
        return opened

    def _open_span(self, span: Span, place: bytes) -> Span:
        """Return a span whose value has another key than the active one."""
        sealed = span.attributes[_SEALED]
        try:
            return _filled(span, self.cipher.open(sealed, place, what=f"Span {span.id!r}"))
        except EncryptionError as error:
            return _shown_span(_unmarked(span), self._text_of(error))

    def seal_output(self, attempt_id: str, output: Any) -> Any:
        kept = json_value(output)
        if kept is None or "outputs" not in self._fields:
            return kept
        return self.cipher.seal_repeatable(encode(_Value(kept)), _place("output", attempt_id))

    def seal_failure(self, attempt_id: str, failure: Failure | None) -> Failure | None:
        if failure is None or "errors" not in self._fields:
            return failure
        texts = encode(_Failed(failure.message, failure.traceback))
        value = self.cipher.seal_repeatable(texts, _place("failure", attempt_id))
        return replace(failure, message=as_text(value), traceback="")

    def seal_attempt(self, attempt: Attempt) -> Attempt:
        return replace(
            attempt,
            output=self.seal_output(attempt.id, attempt.output),
            failure=self.seal_failure(attempt.id, attempt.failure),
        )

    def open_attempt(self, attempt: Attempt) -> Attempt:
        output, failure = attempt.output, attempt.failure
        if key_id(output) is not None:
            place, what = _place("output", attempt.id), f"The output of attempt {attempt.id!r}"
            output = self._opened(output, place, _VALUES, what, _Value).value
        if failure is not None and (sealed := from_text(failure.message)) is not None:
            place, what = _place("failure", attempt.id), f"The error of attempt {attempt.id!r}"
            texts = self._opened(sealed, place, _FAILURES, what, lambda shown: _Failed(shown, ""))
            failure = replace(failure, message=texts.message, traceback=texts.traceback)
        if output is attempt.output and failure is attempt.failure:
            return attempt
        return replace(attempt, output=output, failure=failure)

    def seal_rollout(self, rollout: Rollout) -> tuple[Rollout, Task]:
        """Encrypt a rollout's task; see `seal_attempt` for its attempts.

        A task that cannot be stored stays as it is, so that the store refuses it.

        Returns:
            The rollout, and the task as `open_rollout` would return it.
        """
        if "tasks" not in self._fields:
            return rollout, rollout.task
        try:
            content = encode(rollout.task)
            task = _TASKS.decode(content)
        except (RecursionError, StoreError):
            return rollout, rollout.task
        place = _place("task", rollout.id)
        value = self.cipher.seal(content, place)
        self._remember(place + value, content)
        return replace(rollout, task=Task(id=rollout.task.id, input=value)), task

    def open_rollout(self, rollout: Rollout) -> Rollout:
        task = self._open_task(rollout)
        attempts = rollout.attempts
        for attempt in attempts:
            if attempt.output is not None or attempt.failure is not None:
                attempts = tuple(map(self.open_attempt, attempts))
                break
        if task is rollout.task and attempts is rollout.attempts:
            return rollout
        return replace(rollout, task=task, attempts=attempts)

    def _open_task(self, rollout: Rollout) -> Task:
        sealed = rollout.task.input
        if key_id(sealed) is None:
            return rollout.task
        place = _place("task", rollout.id)
        known = self._tasks.get(place + sealed)
        if known is not None:
            return _TASKS.decode(known)
        what = f"The task of rollout {rollout.id!r}"
        try:
            value = self.cipher.open(sealed, place, what=what)
        except EncryptionError as error:
            return Task(id=rollout.task.id, input=self._text_of(error))
        self._remember(place + sealed, value)
        return _TASKS.decode(value)

    def _remember(self, sealed: bytes, task: bytes) -> None:
        """Keep a task, as a rollout is read several times: queued, claimed and waited for."""
        if len(self._tasks) == _MOST_TASKS:
            self._tasks.clear()
        if len(task) <= _LONGEST_TASK:
            self._tasks[sealed] = task

    def seal_resources(self, resources: Resources) -> Resources:
        if "prompts" not in self._fields:
            return resources
        items = {name: self._seal_item(name, item) for name, item in resources.items.items()}
        return replace(resources, items=items)

    def _seal_item(self, name: str, item: LLM | PromptTemplate) -> LLM | PromptTemplate:
        if isinstance(item, LLM):
            if not item.api_key:
                return item
            value = self.cipher.seal(encode(_Value(item.api_key)), _place("key", name))
            return replace(item, api_key=as_text(value))
        texts = encode(_Template(item.template, item.known))
        value = self.cipher.seal(texts, _place("prompt", name))
        return replace(item, template=as_text(value), known=None)

    def open_resources(self, resources: Resources) -> Resources:
        where = f"of version {resources.version} of the resources"
        items = {name: self._open_item(name, item, where) for name, item in resources.items.items()}
        same = all(items[name] is item for name, item in resources.items.items())
        return resources if same else replace(resources, items=items)

    def _open_item(self, name: str, item: LLM | PromptTemplate, where: str) -> LLM | PromptTemplate:
        sealed = from_text(item.api_key if isinstance(item, LLM) else item.template)
        if sealed is None:
            return item
        if isinstance(item, LLM):
            what = f"The key of model {name!r} {where}"
            text = self._opened(sealed, _place("key", name), _VALUES, what, _Value).value
            return replace(item, api_key=text)
        what = f"Prompt {name!r} {where}"
        texts = self._opened(
            sealed, _place("prompt", name), _TEMPLATES, what, lambda shown: _Template(shown, None)
        )
        return replace(item, template=texts.template, known=texts.known)

    def _opened(
        self,
        sealed: bytes,
        place: bytes,
        codec: Codec[T],
        what: str,
        shown: Callable[[str], T],
    ) -> T:
        """Return a decrypted record, or what `shown` makes of the text that stands for it."""
        try:
            value = self.cipher.open(sealed, place, what=what)
        except EncryptionError as error:
            return shown(self._text_of(error))
        return codec.decode(value)

    def _text_of(self, error: EncryptionError) -> str:
        """Return what is shown in place of a value.

        Raises:
            EncryptionError: the records are not only for people.
        """
        if not self._for_people:
            raise error
        return f"[encrypted with key {error.key_id}]"


def keys_of_resources(resources: Resources) -> set[str | None]:
    """Return the ids of the keys of the values; None for one that is not encrypted."""
    texts = [
        item.api_key if isinstance(item, LLM) else item.template
        for item in resources.items.values()
        if not isinstance(item, LLM) or item.api_key
    ]
    return {key_id(from_text(text)) for text in texts}


def key_of_span(span: Span) -> str | None:
    """Return the id of the key with which a span is encrypted; None if it is not."""
    return key_id(span.attributes.get(_SEALED))


def _packed(value: Any) -> Ext:
    """Encode tokens as `agl_core.store.encode` does, which takes longer because it takes any value.

    Raises:
        NotImplementedError: the value is another one.
    """
    code = _CODES.get(value.typecode) if value.__class__ is array else None
    if code is None:
        raise NotImplementedError
    return Ext(code, value.tobytes())


_CODES: Final = {each: encode(array(each))[2] for each in "id" if sys.byteorder == "little"}
"""Codes of msgpack that `agl_core.store.encode` gives packed tokens, by their types."""
_encode_into: Final = msgspec.msgpack.Encoder(enc_hook=_packed).encode_into


def _contents(spans: Sequence[Span]) -> Iterator[bytearray]:
    """Encode spans, one after the other into the same bytes.

    Raises:
        NotImplementedError: a value is neither plain nor packed tokens.
        UnicodeEncodeError, OverflowError, RecursionError: it takes `agl_core.store.encode_span`.
    """
    content = bytearray()
    for span in spans:
        _encode_into(span, content)
        yield content


def _place(kind: str, record: str) -> bytes:
    return kind.encode() + b" " + exact_bytes(record)


def _places(spans: Sequence[Span]) -> list[bytes]:
    """Return the places of the spans' values; neighbours are usually of one attempt."""
    places: list[bytes] = []
    attempt_id, prefix = None, b""
    for span in spans:
        if span.attempt_id != attempt_id:
            attempt_id = span.attempt_id
            attempt = exact_bytes(attempt_id)
            prefix = b"span %d %b" % (len(attempt), attempt)
        try:
            places.append(prefix + span.id.encode())
        except UnicodeEncodeError:
            places.append(prefix + exact_bytes(span.id))
    return places


def _unmarked(span: Span) -> Span:
    """Return a span without its encrypted value."""
    kept = {name: value for name, value in span.attributes.items() if name != _SEALED}
    return replace(span, attributes=kept)


def _bare(span: Span, value: bytes) -> Span:
    """Return a span whose content is all in the encrypted value, with the counts of its tokens."""
    call, reward = span.call, span.reward
    attributes: dict[str, Any] = {_SEALED: value}
    if call is not None:
        choices = call.choices
        attributes[GEN_AI_REQUEST_MODEL] = call.model
        attributes[GEN_AI_USAGE_INPUT_TOKENS] = len(call.prompt_token_ids)
        attributes[GEN_AI_USAGE_OUTPUT_TOKENS] = (
            len(choices[0].token_ids)
            if len(choices) == 1
            else sum(len(choice.token_ids) for choice in choices)
        )
    if reward is not None and reward.why:
        reward = replace(reward, why="")
    return replace(span, attributes=attributes, error="", call=None, reward=reward)


def _filled(span: Span, value: bytes) -> Span:
    """Return a stored span with its decrypted content; see the module for the forms of that."""
    fields = value[0]
    if fields > _ALL_OF_SPANS:
        return SPANS.decode(value)
    content = SPANS.decode(value[1:])
    if fields == _ALL_OF_SPANS:
        return content
    named = [name for n, name in enumerate(_OF_SPANS) if fields >> n & 1]
    return _merged(_unmarked(span), content, named)


def _without(span: Span, fields: frozenset[str]) -> Span:
    """Return a span without the content of some fields."""
    if not fields:
        return span
    changes: dict[str, Any] = {}
    if "attributes" in fields:
        changes["attributes"] = {}
    if "errors" in fields and span.error:
        changes["error"] = ""
    if span.reward is not None and "rewards" in fields and span.reward.why:
        changes["reward"] = replace(span.reward, why="")
    if span.call is not None and not fields.isdisjoint(_OF_CALLS):
        changes["call"] = _call_without(span.call, fields)
    return replace(span, **changes) if changes else span


_OF_CALLS: Final = ("messages", "tokens", "errors")


def _call_without(call: ModelCall, fields: frozenset[str]) -> ModelCall:
    changes: dict[str, Any] = {}
    if "errors" in fields:
        changes["error"] = ""
    if "messages" in fields:
        changes.update(messages=[], tools=[])
        if call.sampling.stop or call.sampling.extra:
            changes["sampling"] = replace(call.sampling, stop=(), extra={})
    if "tokens" in fields:
        changes["prompt_token_ids"] = _NO_TOKENS.token_ids
    if "messages" in fields or "tokens" in fields:
        changes["choices"] = [_choice_without(choice, fields) for choice in call.choices]
    return replace(call, **changes)


def _choice_without(choice: Choice, fields: frozenset[str]) -> Choice:
    tokens = choice if "tokens" not in fields else _NO_TOKENS
    kept = Choice(
        index=choice.index,
        finish_reason=choice.finish_reason,
        token_ids=tokens.token_ids,
        logprobs=tokens.logprobs,
    )
    return kept if "messages" in fields else _with_texts(kept, choice)


def _with_texts(choice: Choice, other: Choice) -> Choice:
    return replace(
        choice,
        text=other.text,
        reasoning=other.reasoning,
        tool_calls=other.tool_calls,
        function_call=other.function_call,
        refusal=other.refusal,
        audio=other.audio,
    )


def _merged(span: Span, content: Span, fields: Collection[str]) -> Span:
    """Return a stored span with the decrypted content of some fields."""
    changes: dict[str, Any] = {}
    if "attributes" in fields:
        changes["attributes"] = content.attributes
    if "errors" in fields:
        changes["error"] = content.error
    if span.reward is not None and content.reward is not None and "rewards" in fields:
        changes["reward"] = replace(span.reward, why=content.reward.why)
    if span.call is not None and content.call is not None:
        changes["call"] = _merged_call(span.call, content.call, fields)
    return replace(span, **changes)


def _merged_call(call: ModelCall, content: ModelCall, fields: Collection[str]) -> ModelCall:
    changes: dict[str, Any] = {}
    choices = call.choices
    if "errors" in fields:
        changes["error"] = content.error
    if "messages" in fields:
        sampling = content.sampling
        changes.update(messages=content.messages, tools=content.tools)
        changes["sampling"] = replace(call.sampling, stop=sampling.stop, extra=sampling.extra)
        choices = [_with_texts(*pair) for pair in zip(choices, content.choices, strict=True)]
    if "tokens" in fields:
        changes["prompt_token_ids"] = content.prompt_token_ids
        choices = [
            replace(choice, token_ids=other.token_ids, logprobs=other.logprobs)
            for choice, other in zip(choices, content.choices, strict=True)
        ]
    return replace(call, choices=choices, **changes)


def _shown_span(span: Span, text: str) -> Span:
    """Return a span that cannot be decrypted, with a text in place of its content."""
    changes: dict[str, Any] = {"attributes": {**span.attributes, "agl.encrypted": text}}
    if span.reward is not None:
        changes["reward"] = replace(span.reward, why=span.reward.why or text)
    if span.call is not None and not span.call.messages:
        choices = [replace(choice, text=choice.text or text) for choice in span.call.choices]
        messages = [{"role": "user", "content": text}]
        changes["call"] = replace(span.call, messages=messages, choices=choices)
    return replace(span, **changes)
