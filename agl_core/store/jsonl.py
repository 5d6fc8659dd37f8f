"""A whole store as lines of JSON and back, with nothing lost on the way.

::

    {"kind": "store", "format": 1}
    {"kind": "resources", "record": {...}}      every version, oldest first
    {"kind": "rollout", "record": {...}}        with its attempts, then the spans of its attempts
    {"kind": "span", "record": {...}}
    {"kind": "end", "resources": 1, "rollouts": 2, "spans": 30}

Records have the fields of `agl_core.types`. What JSON has no form for is written as a mapping with
one key: ``{"$bytes": base64}``, ``{"$float": "nan" | "inf" | "-inf"}``, ``{"$time": iso}``; a
user's own mapping that looks like one of these as ``{"$dict": {...}}``.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, Final, cast

import msgspec

from agl_core.errors import StoreError
from agl_core.interfaces import Store
from agl_core.store.paging import rollout_pages
from agl_core.types import Resources, Rollout, RolloutQuery, Span

FORMAT: Final = 1
_PAGE = 100
_KINDS: Final[dict[str, type[Resources | Rollout | Span]]] = {
    "resources": Resources,
    "rollout": Rollout,
    "span": Span,
}
_END: Final = {"resources": "resources", "rollouts": "rollout", "spans": "span"}


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Any record as JSON text that `json_value` reads back; see the module on what has no form."""
    tree = msgspec.to_builtins(value, builtin_types=(bytes, datetime))
    try:
        text = _dump(tree, indent)
    except (TypeError, ValueError):
        return _dump(_tagged(tree), indent)
    # Text that itself contains the mark is looked at again, which does no harm.
    return _dump(_tagged(tree), indent) if '"$' in text else text


def json_value(text: str) -> Any:
    """What `json_text` wrote, as plain values.

    Raises:
        ValueError: it is no such text.
    """
    value = json.loads(text)
    return _untagged(value) if '"$' in text else value


async def export_lines(
    store: Store, query: RolloutQuery | None = None
) -> AsyncGenerator[str, None]:
    """The lines of an export, without line ends; a page of rollouts is in memory at a time.

    Args:
        store: Open, at least for reading.
        query: Which rollouts; all when None.
    """
    yield json_text({"kind": "store", "format": FORMAT})
    counts = dict.fromkeys(_END, 0)
    latest = await store.resources()
    for version in range(1, latest.version + 1 if latest else 1):
        yield json_text({"kind": "resources", "record": await store.resources(version)})
        counts["resources"] += 1
    async for page in rollout_pages(store, query, size=_PAGE):
        spans: dict[str, list[Span]] = {}
        for span in await store.spans([rollout.id for rollout in page]):
            spans.setdefault(span.rollout_id, []).append(span)
        for rollout in page:
            yield json_text({"kind": "rollout", "record": rollout})
            counts["rollouts"] += 1
            for span in spans.get(rollout.id, ()):
                yield json_text({"kind": "span", "record": span})
                counts["spans"] += 1
    yield json_text({"kind": "end", **counts})


def read_export(lines: Iterable[str]) -> Iterator[Resources | Rollout | Span]:
    """The records of an export in their order.

    Raises:
        StoreError: a line is none of an export, or the export was cut off.
    """
    counts = dict.fromkeys(_KINDS, 0)
    number, ended = 0, False
    for number, line in enumerate(lines, start=1):
        try:
            row = json_value(line)
            kind, ended = row["kind"], False
            if number == 1 or kind == "store":
                _check_head(row, number)
            elif kind == "end":
                ended = {name: counts[of] for name, of in _END.items()} == {
                    name: row[name] for name in _END
                }
            else:
                yield msgspec.convert(row["record"], _KINDS[kind])
                counts[kind] += 1
        except (ValueError, TypeError, KeyError) as error:
            raise StoreError(f"Line {number} is none of a store's export: {error!r}") from error
    if not ended:
        raise StoreError(f"The export is not whole: {number} lines, the last does not count them")


def _check_head(row: dict[str, Any], number: int) -> None:
    if number != 1 or row["kind"] != "store" or row["format"] != FORMAT:
        raise ValueError(f"format {FORMAT} begins with a line of kind 'store'; this is {row}")


def _dump(tree: Any, indent: int | None) -> str:
    separators = (",", ":") if indent is None else None
    text = json.dumps(
        tree, ensure_ascii=False, allow_nan=False, separators=separators, indent=indent
    )
    try:
        text.encode()
    except UnicodeEncodeError:
        # A lone surrogate has no form in UTF-8, but an escape in JSON.
        return json.dumps(tree, allow_nan=False, separators=separators, indent=indent)
    return text


def _tagged(value: Any) -> Any:
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        inner = {str(key): _tagged(item) for key, item in items}
        return {"$dict": inner} if _looks_tagged(inner) else inner
    if isinstance(value, list | tuple):
        return [_tagged(item) for item in cast("list[Any]", value)]
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return {"$time": value.isoformat()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    return value


def _looks_tagged(value: dict[str, Any]) -> bool:
    return len(value) == 1 and next(iter(value)).startswith("$")


def _untagged(value: Any) -> Any:
    if isinstance(value, list):
        return [_untagged(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    mapping = cast("dict[str, Any]", value)
    if not _looks_tagged(mapping):
        return {key: _untagged(item) for key, item in mapping.items()}
    ((tag, inner),) = mapping.items()
    return _UNTAG[tag](inner)


_UNTAG: Final[dict[str, Callable[[Any], Any]]] = {
    "$dict": lambda inner: {key: _untagged(item) for key, item in inner.items()},
    "$bytes": base64.b64decode,
    "$time": datetime.fromisoformat,
    "$float": float,
}
