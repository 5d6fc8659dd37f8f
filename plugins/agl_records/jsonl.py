"""A whole store as lines of JSON and back, without loss.

::

    {"kind": "store", "format": 1}
    {"kind": "resources", "record": {...}}      every version, oldest first
    {"kind": "rollout", "record": {...}}        with its attempts, then the spans of its attempts
    {"kind": "span", "record": {...}}
    {"kind": "end", "resources": 1, "rollouts": 2, "spans": 30}

Records have the fields of `agl_core.types`, in the form of `agl_core.types.json_text`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Any, Final

import msgspec
from agl_stores import rollout_pages

from agl_core.errors import StoreError
from agl_core.interfaces import Store
from agl_core.types import Resources, Rollout, RolloutQuery, Span, from_list
from agl_core.types.json_text import json_text, json_value
from agl_records._fields import all_fields

FORMAT: Final = 1
_PAGE = 100
_KINDS: Final[dict[str, type[Resources | Rollout | Span]]] = {
    "resources": Resources,
    "rollout": Rollout,
    "span": Span,
}
_END: Final = {"resources": "resources", "rollouts": "rollout", "spans": "span"}


async def export_lines(
    store: Store, query: RolloutQuery | None = None
) -> AsyncGenerator[str, None]:
    """Yield the lines of an export, without line ends; one page of rollouts is in memory at a time.

    Args:
        store: Open, at least for reading.
        query: Selects rollouts; all when None.
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
                yield json_text({"kind": "span", "record": all_fields(span)})
                counts["spans"] += 1
    yield json_text({"kind": "end", **counts})


def read_export(lines: Iterable[str]) -> Iterator[Resources | Rollout | Span]:
    """Yield the records of an export in their order.

    Raises:
        StoreError: a line does not belong to an export, or the export is cut off.
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
                yield msgspec.convert(row["record"], _KINDS[kind], dec_hook=from_list)
                counts[kind] += 1
        except (ValueError, TypeError, KeyError) as error:
            raise StoreError(f"Line {number} is not from a store's export: {error!r}") from error
    if not ended:
        raise StoreError(
            f"The export is incomplete: it has {number} lines and no matching last line"
        )


def _check_head(row: dict[str, Any], number: int) -> None:
    if number != 1 or row["kind"] != "store" or row["format"] != FORMAT:
        raise ValueError(f"format {FORMAT} begins with a line of kind 'store'; this is {row}")
