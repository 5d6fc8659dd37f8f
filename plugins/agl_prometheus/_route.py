"""The route ``/metrics``: counts of a gateway's model requests in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from agl_core import semconv
from agl_core.interfaces import Access, RouteAnswer, RouteRequest, Store
from agl_core.text import replaced
from agl_core.types import Losses, Span

_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_BOUNDS_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_NS_PER_S: Final = 1e9
_BOUNDS_NS: Final = tuple(int(bound * _NS_PER_S) for bound in _BOUNDS_S)

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Row:
    """The counts of one policy."""

    requests: dict[int, int] = field(default_factory=dict[int, int])
    """Number of requests by HTTP status."""
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    times: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS_S) + 1))
    """Number of requests in each interval between the bounds; the last interval is unbounded."""
    total_ns: int = 0


class PrometheusRoute:
    """Counts model requests by policy; creates text only when asked."""

    access: Access = "operators"

    def __init__(self, store: Store, losses: Losses) -> None:
        del store
        self._losses = losses
        self._rows: dict[str, _Row] = {}

    def recorded(self, span: Span) -> None:
        """Count a request that has ended, from its record; every try is a request."""
        call = span.call
        if call is None:
            return
        row = self._rows.get(call.policy)
        if row is None:
            row = self._rows[call.policy] = _Row()
        row.requests[call.status_code] = row.requests.get(call.status_code, 0) + 1
        prompt, sampled = len(call.prompt_token_ids), 0
        for choice in call.choices:
            sampled += len(choice.token_ids)
        # Calls that are not trained have no ids, but their usage may have the numbers.
        row.prompt_tokens += prompt or span.attributes.get(semconv.GEN_AI_USAGE_INPUT_TOKENS) or 0
        row.sampled_tokens += (
            sampled or span.attributes.get(semconv.GEN_AI_USAGE_OUTPUT_TOKENS) or 0
        )
        took_ns = call.ended_ns - call.started_ns
        row.times[bisect_left(_BOUNDS_NS, took_ns)] += 1
        row.total_ns += took_ns

    async def serve(self, request: RouteRequest) -> RouteAnswer:
        """Return all metrics in version 0.0.4 of the format."""
        lines = [*self._counters(), *self._histograms(), *self._gauges(request), *self._lost()]
        return RouteAnswer(
            body="".join(f"{line}\n" for line in lines).encode(), content_type=_CONTENT_TYPE
        )

    def _gauges(self, request: RouteRequest) -> Iterator[str]:
        for name, meaning, value in (
            ("in_flight", "Requests under way.", request.in_flight),
            ("open_attempts", "Attempts not sealed yet.", request.open_attempts),
        ):
            yield from _family(f"agl_gateway_{name}", "gauge", meaning, [((), value)])

    def _lost(self) -> Iterator[str]:
        lost = sorted(self._losses.counts.items())
        yield from _family(
            "agl_gateway_lost_total",
            "counter",
            "Losses that no record shows, by cause.",
            [((("cause", cause),), count) for cause, count in lost],
        )

    def _counters(self) -> Iterator[str]:
        served = sorted(self._rows.items())
        requests = [
            ((("policy", policy), ("status", str(status))), count)
            for policy, row in served
            for status, count in sorted(row.requests.items())
        ]
        yield from _family(
            "agl_gateway_requests_total", "counter", "Requests that ended, every try.", requests
        )
        yield from _family(
            "agl_gateway_prompt_tokens_total",
            "counter",
            "Prompt tokens, every try.",
            [((("policy", policy),), row.prompt_tokens) for policy, row in served],
        )
        yield from _family(
            "agl_gateway_sampled_tokens_total",
            "counter",
            "Sampled tokens, every try.",
            [((("policy", policy),), row.sampled_tokens) for policy, row in served],
        )

    def _histograms(self) -> Iterator[str]:
        name = "agl_gateway_request_seconds"
        yield f"# HELP {name} From a request's arrival to the end of its answer."
        yield f"# TYPE {name} histogram"
        for policy, row in sorted(self._rows.items()):
            total = 0
            bounds = (*(f"{bound:g}" for bound in _BOUNDS_S), "+Inf")
            for bound, count in zip(bounds, row.times, strict=True):
                total += count
                yield f"{name}_bucket{_labels((('policy', policy), ('le', bound)))} {total}"
            yield f"{name}_sum{_labels((('policy', policy),))} {row.total_ns / _NS_PER_S!r}"
            yield f"{name}_count{_labels((('policy', policy),))} {total}"


def _family(
    name: str, kind: str, meaning: str, rows: Iterable[tuple[Labels, int]]
) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"
    for labels, value in rows:
        yield f"{name}{_labels(labels)} {value}"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    plain = replaced(value)
    return plain.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
