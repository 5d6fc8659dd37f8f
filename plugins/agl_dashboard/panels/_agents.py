"""The page of agents: what each did and earned, and who calls whom."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from agl_reading import Sum, SumKind

from agl_core.errors import ConfigError
from agl_dashboard._panel import Page, PlainAnswer, View
from agl_dashboard._rows import rows_file, rows_kind
from agl_dashboard._steps import shown_step
from agl_dashboard.panels._overview import interval

_KINDS: Final[tuple[SumKind, ...]] = (
    "calls",
    "prompt_tokens",
    "sampled_tokens",
    "call_seconds",
    "cut",
    "errors",
    "tools",
    "agent",
    "edge",
)
_PROGRAM: Final = "the program"
_ACROSS, _DOWN, _HIGH, _PER_LETTER = 230, 62, 34, 7.6
_LONGEST: Final = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSums:
    """Sums of one agent."""

    name: str
    sums: Mapping[SumKind, Sum]
    prices: tuple[float, float] | None = None
    """Prices of a million prompt tokens and of a million sampled tokens."""

    @property
    def cost(self) -> float | None:
        if self.prices is None:
            return None
        tokens = self.total("prompt_tokens"), self.total("sampled_tokens")
        return sum(n * price for n, price in zip(tokens, self.prices, strict=True)) / 1e6

    def total(self, kind: SumKind) -> float:
        found = self.sums.get(kind)
        return found.total if found is not None else 0.0

    def per_call(self, kind: SumKind) -> float | None:
        calls = self.total("calls")
        return self.total(kind) / calls if calls and kind in self.sums else None

    @property
    def share_cut(self) -> float:
        calls = self.total("calls")
        return self.total("cut") / calls if calls else 0.0

    @property
    def share_failed(self) -> float:
        calls = self.total("calls")
        return self.total("errors") / calls if calls else 0.0

    @property
    def seconds(self) -> float | None:
        found = self.sums.get("call_seconds")
        return found.total / found.n if found is not None and found.n else None

    @property
    def reward(self) -> float | None:
        found = self.sums.get("agent")
        return found.total / found.n if found is not None and found.n else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """An agent in the graph."""

    name: str
    label: str
    x: float
    y: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """Control that passed from one agent to another."""

    path: str
    x: float
    y: float
    count: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Boxes and arrows with their places."""

    boxes: Sequence[Box]
    arrows: Sequence[Arrow]
    width: float
    height: float


class AgentsPanel:
    """Calls, tokens, cost, time, cut answers and rewards of each agent; the graph of control."""

    title = "Agents"
    order = 40
    scope: Literal["all", "run"] = "run"

    async def page(self, view: View) -> Page | PlainAnswer:
        mode = view.query.get("mode", "")
        first, last = interval(view.query.get("steps", ""))
        sums = [
            each
            for each in await view.run.reading.sums(_KINDS)
            if mode in ("", each.mode)
            and (first is None or shown_step(each.mode, each.step) >= first)
            and (last is None or shown_step(each.mode, each.step) <= last)
        ]
        agents = [replace(each, prices=_prices(view, each.name)) for each in _agents(sums)]
        kind = rows_kind(view.rest, "agents")
        if kind is not None:
            return rows_file("agents", kind, map(_plain, agents))
        costs = [each.cost for each in agents if each.cost is not None]
        body = view.template(
            "agents.html",
            view=view,
            mode=mode,
            steps=view.query.get("steps", ""),
            agents=agents,
            priced=view.query.get("prices") == "1",
            cost=sum(costs) if costs else None,
            unpriced=sum(each.cost is None and each.total("calls") > 0 for each in agents),
            graph=_graph(_edges(sums)),
            progress=view.run.reading.progress,
        )
        return Page(title="Agents", body=body)


def make_panel() -> AgentsPanel:
    return AgentsPanel()


def _prices(view: View, agent: str) -> tuple[float, float] | None:
    """Return the prices of an agent in the page's address; one that is missing is 0."""
    given = [view.query.get(f"{kind}:{agent}", "").strip() for kind in ("in", "out")]
    if not any(given):
        return None
    prompt, sampled = [_price(each, agent) for each in given]
    return prompt, sampled


def _price(text: str, agent: str) -> float:
    try:
        price = float(text or 0)
    except ValueError:
        price = math.nan
    if not (math.isfinite(price) and price >= 0):
        raise ConfigError(
            f"The price {text!r} of agent {agent!r} is not a number of at least 0: give the price of "
            f"a million tokens, such as 0.15"
        )
    return price


def _agents(sums: Sequence[Sum]) -> list[AgentSums]:
    found: dict[str, dict[SumKind, Sum]] = defaultdict(dict)
    for each in sums:
        if each.kind == "edge" or (each.kind == "tools" and not each.name):
            continue
        own = found[each.name]
        known = own.get(each.kind)
        own[each.kind] = each if known is None else _added(known, each)
    agents = [AgentSums(name=name, sums=own) for name, own in found.items()]
    return sorted(agents, key=lambda each: (-each.total("calls"), each.name))


def _plain(agent: AgentSums) -> dict[str, Any]:
    names: tuple[SumKind, ...] = (
        "calls",
        "prompt_tokens",
        "sampled_tokens",
        "cut",
        "errors",
        "tools",
    )
    return {
        "agent": agent.name,
        **{name: int(agent.total(name)) for name in names},
        "cost": agent.cost,
        "call_seconds": agent.seconds,
        "reward": agent.reward,
    }


def _added(one: Sum, other: Sum) -> Sum:
    return Sum(
        mode=one.mode,
        step=one.step,
        kind=one.kind,
        name=one.name,
        n=one.n + other.n,
        total=one.total + other.total,
    )


def _edges(sums: Sequence[Sum]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = defaultdict(float)
    for each in sums:
        if each.kind == "edge":
            caller, _, called = each.name.partition("\n")
            found[(caller, called)] += each.total
    return found


def _graph(edges: Mapping[tuple[str, str], float]) -> Graph | None:
    """Place agents in columns by their distance from the program."""
    if not edges:
        return None
    column = {"": 0}
    while True:
        reached = {
            called: column[caller] + 1
            for caller, called in edges
            if caller in column and called not in column
        }
        if not reached:
            break
        column.update(reached)
    for caller, called in edges:
        column.setdefault(caller, 1)
        column.setdefault(called, column[caller] + 1)
    boxes: dict[str, Box] = {}
    rows: dict[int, int] = defaultdict(int)
    for name in sorted(column, key=lambda each: (column[each], each)):
        label = name or _PROGRAM
        label = label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}…"
        at = column[name]
        boxes[name] = Box(
            name=name,
            label=label,
            x=10 + at * _ACROSS,
            y=24 + rows[at] * _DOWN,
            width=len(label) * _PER_LETTER + 24,
        )
        rows[at] += 1
    most = max(edges.values())
    arrows = [
        _arrow(boxes[caller], boxes[called], count, most)
        for (caller, called), count in sorted(edges.items())
    ]
    width = max(box.x + box.width for box in boxes.values()) + 20
    height = 24 + max(rows.values()) * _DOWN + 10
    return Graph(boxes=[*boxes.values()], arrows=arrows, width=width, height=height)


def _arrow(one: Box, other: Box, count: float, most: float) -> Arrow:
    width = 1 + 2.5 * count / most
    middle = one.y + _HIGH / 2, other.y + _HIGH / 2
    if other.x > one.x:
        start, end = one.x + one.width, other.x - 6
        bend = (start + end) / 2
        path = f"M{start},{middle[0]} C{bend},{middle[0]} {bend},{middle[1]} {end},{middle[1]}"
        return Arrow(path=path, x=bend, y=sum(middle) / 2 - 6, count=count, width=width)
    start, end = one.x + one.width / 2, other.x + other.width / 2 + (12 if one is other else 0)
    above = min(one.y, other.y) - 22
    path = f"M{start},{one.y} C{start},{above} {end},{above} {end},{other.y - 6}"
    return Arrow(path=path, x=(start + end) / 2, y=above + 8, count=count, width=width)
