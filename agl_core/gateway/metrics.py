"""What the gateway counts, as Prometheus reads it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from agl_core import semconv
from agl_core.types import Span

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"

_BOUNDS_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_NS_PER_S: Final = 1e9

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Histogram:
    counts: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS_S) + 1))
    """Per interval between bounds, the last one open."""
    total_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(_BOUNDS_S, seconds)] += 1
        self.total_s += seconds


class Metrics:
    """Counts of requests, in plain numbers; text is made only when somebody asks."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._prompt_tokens: Counter[str] = Counter()
        self._sampled_tokens: Counter[str] = Counter()
        self._seconds: dict[str, _Histogram] = {}

    def count(self, span: Span) -> None:
        """Count a request that ended, by its record; every try is a request."""
        call = span.call
        if call is None:
            return
        policy = call.policy
        self._requests[policy, call.status_code] += 1
        usage = span.attributes
        prompt = len(call.prompt_token_ids) or usage.get(semconv.GEN_AI_USAGE_INPUT_TOKENS) or 0
        sampled = sum(len(choice.token_ids) for choice in call.choices)
        self._prompt_tokens[policy] += prompt
        self._sampled_tokens[policy] += sampled or (
            usage.get(semconv.GEN_AI_USAGE_OUTPUT_TOKENS) or 0
        )
        histogram = self._seconds.get(policy)
        if histogram is None:
            histogram = self._seconds[policy] = _Histogram()
        histogram.add((call.ended_ns - call.started_ns) / _NS_PER_S)

    def render(self, *, gauges: Mapping[str, tuple[str, int]], losses: Mapping[str, int]) -> bytes:
        """Everything in the text format, version 0.0.4.

        Args:
            gauges: Name to meaning and value of what stands right now.
            losses: Cause to count.
        """
        lines = [*self._counters(), *self._histograms()]
        for name, (meaning, value) in gauges.items():
            lines += _family(name, "gauge", meaning, [((), value)])
        rows = [((("cause", cause),), count) for cause, count in sorted(losses.items())]
        lines += _family(
            "agl_gateway_lost_total", "counter", "What no record tells, by cause.", rows
        )
        return "".join(f"{line}\n" for line in lines).encode()

    def _counters(self) -> Iterator[str]:
        requests = [
            ((("policy", policy), ("status", str(status))), count)
            for (policy, status), count in sorted(self._requests.items())
        ]
        yield from _family(
            "agl_gateway_requests_total", "counter", "Requests that ended, every try.", requests
        )
        for name, counts, meaning in (
            ("prompt", self._prompt_tokens, "Prompt tokens, every try."),
            ("sampled", self._sampled_tokens, "Sampled tokens, every try."),
        ):
            rows = [((("policy", policy),), count) for policy, count in sorted(counts.items())]
            yield from _family(f"agl_gateway_{name}_tokens_total", "counter", meaning, rows)

    def _histograms(self) -> Iterator[str]:
        name = "agl_gateway_request_seconds"
        yield f"# HELP {name} From a request's arrival to the end of its answer."
        yield f"# TYPE {name} histogram"
        for policy, histogram in sorted(self._seconds.items()):
            total = 0
            bounds = (*(f"{bound:g}" for bound in _BOUNDS_S), "+Inf")
            for bound, count in zip(bounds, histogram.counts, strict=True):
                total += count
                yield f"{name}_bucket{_labels((('policy', policy), ('le', bound)))} {total}"
            yield f"{name}_sum{_labels((('policy', policy),))} {histogram.total_s!r}"
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
    plain = value.encode("utf-8", "replace").decode()
    return plain.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
