"""The page of a run's numbers by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from agl_core.text import replaced
from agl_core.types import Evaluation, StepReport
from agl_dashboard._history import History, evaluation_text
from agl_dashboard._panel import Page, PlainAnswer, View
from agl_dashboard._rows import rows_file, rows_kind
from agl_dashboard._steps import shown_step

_FIRST: Final = ("loss", "entropy", "kl", "grad_norm", "ratio_mean", "clip_fraction", "staleness")
_TITLES: Final = {
    "kl": "KL divergence",
    "grad_norm": "Norm of the gradient",
    "ratio_mean": "Ratio, mean",
    "clip_fraction": "Clipped tokens",
    "staleness": "Staleness in steps",
}
_MOST_POINTS: Final = 2000

Value = Callable[[StepReport], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart: where its numbers are, and what it is called."""

    id: str
    title: str
    note: str = ""


class OverviewPanel:
    """Reward by step, channel and agent; held-out scores; metrics; time; losses."""

    title = "Overview"
    order = 10
    scope: Literal["all", "run"] = "run"

    async def page(self, view: View) -> Page | PlainAnswer:
        history = view.run.files.history if view.run.files is not None else History()
        if view.rest == "data.json":
            return await _data(view, history)
        first, last = interval(view.query.get("steps", ""))
        chosen = [
            each
            for number, each in sorted(history.steps.items())
            if (first is None or number >= first) and (last is None or number <= last)
        ]
        kind = rows_kind(view.rest, "steps")
        if kind is not None:
            return rows_file("steps", kind, map(msgspec.to_builtins, chosen))
        body = view.template(
            "overview.html",
            view=view,
            history=history,
            chosen=chosen,
            steps=(first, last),
            charts=charts(history),
            place=evaluation_text,
            tiles=_tiles(history, chosen),
            lost=_total(each.lost for each in chosen),
            failures=_total(each.failures for each in chosen),
            breaks=_breaks(chosen),
        )
        return Page(title="Overview", body=body, scripts=("charts",))


def make_panel() -> OverviewPanel:
    return OverviewPanel()


def interval(text: str) -> tuple[int | None, int | None]:
    """Read an interval of steps such as ``5-20``; no bound for what is not a number."""
    first, dash, last = text.partition("-")
    low = int(first) if first.isdecimal() else None
    high = int(last) if last.isdecimal() else None
    return (low, high if dash else low)


def charts(history: History) -> list[Chart]:
    """Return the charts that have numbers, the important ones first."""
    found = [Chart(id="reward", title="Reward", note="mean per step")]
    if history.evaluations:
        found.append(Chart(id="score", title="Held-out score", note="95 % interval"))
    metrics = _metric_names(history)
    found += [
        Chart(id=f"metric:{name}", title=_titled(name))
        for name in sorted(metrics, key=_rank)
        if _rank(name)[0] < len(_FIRST)
    ]
    if history.steps:
        found.append(Chart(id="speed", title="Sampled tokens per second"))
        found.append(Chart(id="time", title="Seconds per step", note="whole step and its phases"))
    if any(each.lost or each.failures for each in history.steps.values()):
        found.append(Chart(id="lost", title="Losses and failures", note="by cause"))
    if any(each.breaks for each in history.steps.values()):
        found.append(Chart(id="breaks", title="Broken continuations", note="by agent and cause"))
    found += [
        Chart(id=f"metric:{name}", title=_titled(name))
        for name in sorted(metrics)
        if _rank(name)[0] == len(_FIRST) and not name.endswith("_s")
    ]
    return found


def _metric_names(history: History) -> set[str]:
    recent = [history.steps[number] for number in sorted(history.steps)[-50:]]
    return {name for each in recent for name in each.metrics}


def _rank(name: str) -> tuple[int, str]:
    last = name.rpartition("/")[2]
    return (next((at for at, each in enumerate(_FIRST) if each in last), len(_FIRST)), name)


def _titled(name: str) -> str:
    known = _TITLES.get(name.rpartition("/")[2])
    return known or name.replace("_", " ").capitalize()


async def _data(view: View, history: History) -> PlainAnswer:
    from starlette.responses import Response  # noqa: PLC0415

    steps = thinned([history.steps[number] for number in sorted(history.steps)])
    agents: list[dict[str, Any]] = []
    if view.run.readable:
        sums = await view.run.reading.sums(["agent"])
        agents = [
            {"step": shown_step(each.mode, each.step), "name": each.name, "y": each.total / each.n}
            for each in sums
            if each.mode == "train"
        ]
    found = {"x": [each.step for each in steps], "charts": _series(history, steps, agents)}
    data = msgspec.json.encode(_clean(found))
    return Response(data, media_type="application/json")


def thinned(steps: Sequence[StepReport]) -> list[StepReport]:
    """Return at most `_MOST_POINTS` steps, evenly chosen, with the last one."""
    stride = -(-len(steps) // _MOST_POINTS) or 1
    return [*steps[: -1 or None : stride], *steps[-1:]] if steps else []


def _series(
    history: History, steps: Sequence[StepReport], agents: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    found: dict[str, Any] = {"reward": _rewards(steps, agents)}
    if history.evaluations:
        found["score"] = _scores(history.scored)
    names = {name for each in steps for name in each.metrics}
    for name in names:
        found[f"metric:{name}"] = [_line("", steps, _metric(name))]
    found["speed"] = [
        _line("", steps, lambda each: each.tokens / each.wall_s if each.wall_s else None)
    ]
    phases = sorted(name for name in names if name.endswith("_s"))
    found["time"] = [
        _line("whole step", steps, lambda each: each.wall_s),
        *(_line(name.removesuffix("_s"), steps, _metric(name)) for name in phases),
    ]
    causes = sorted({cause for each in steps for cause in (*each.lost, *each.failures)})
    found["lost"] = [
        _line(
            cause,
            steps,
            _cause(cause),
            kind="bar",
        )
        for cause in causes
    ]
    broken = sorted({(a, c) for each in steps for a, own in each.breaks.items() for c in own})
    found["breaks"] = [
        _line(f"{agent}: {cause}", steps, _break(agent, cause), kind="bar")
        for agent, cause in broken
    ]
    return found


def _metric(name: str) -> Value:
    return lambda each: each.metrics.get(name)


def _channel(name: str) -> Value:
    return lambda each: each.channels.get(name)


def _cause(name: str) -> Value:
    return lambda each: each.lost.get(name, 0) + each.failures.get(name, 0)


def _break(agent: str, cause: str) -> Value:
    return lambda each: each.breaks.get(agent, {}).get(cause, 0)


def _line(
    name: str, steps: Sequence[StepReport], value: Value, kind: str = "line"
) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "x": [each.step for each in steps],
        "y": [value(each) for each in steps],
    }


def _rewards(
    steps: Sequence[StepReport], agents: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    found = [_line("all", steps, lambda each: each.reward)]
    channels = sorted({name for each in steps for name in each.channels})
    if len(channels) > 1:
        found += [_line(f"channel {name}", steps, _channel(name)) for name in channels]
    for name in sorted({each["name"] for each in agents}):
        own = [each for each in agents if each["name"] == name]
        found.append(
            {
                "name": f"agent {name}",
                "kind": "line",
                "x": [each["step"] for each in own],
                "y": [each["y"] for each in own],
            }
        )
    return found


def _scores(evaluations: Sequence[Evaluation]) -> list[dict[str, Any]]:
    x = [each.step for each in evaluations]
    phases = ["" if each.phase is None else f" after phase {each.phase}" for each in evaluations]
    found: list[dict[str, Any]] = [
        {
            "name": "score",
            "kind": "band",
            "x": x,
            "y": [each.score.mean for each in evaluations],
            "text": phases,
            "versions": [each.resources_version or "" for each in evaluations],
            "low": [each.score.low for each in evaluations],
            "high": [each.score.high for each in evaluations],
        }
    ]
    for k in sorted({k for each in evaluations for k in each.pass_at_k}):
        means = [each.pass_at_k[k].mean if k in each.pass_at_k else None for each in evaluations]
        found.append({"name": f"pass@{k}", "kind": "line", "x": x, "y": means, "text": phases})
    return found


def _clean(tree: Any) -> Any:
    """Return JSON values without lone surrogates; msgspec writes null for infinities."""
    if isinstance(tree, str):
        return replaced(tree)
    if isinstance(tree, dict):
        return {replaced(str(key)): _clean(each) for key, each in tree.items()}
    return [_clean(each) for each in tree] if isinstance(tree, list) else tree


def _total(counted: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counted:
        for cause, n in each.items():
            total[cause] = total.get(cause, 0) + n
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def _breaks(steps: Sequence[StepReport]) -> list[tuple[str, str, int]]:
    total = _total(
        {f"{agent}\n{cause}": n for agent, own in each.breaks.items() for cause, n in own.items()}
        for each in steps
    )
    return [(*name.split("\n", 1), n) for name, n in total.items()]  # type: ignore[misc]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Numbers over the chosen steps."""

    reward: float | None
    gained: float | None
    """Difference between the means of the last and the first fifth of the steps."""
    rollouts: int
    calls: int
    tokens: int
    tokens_per_s: float | None
    wall_s: float
    lost: int
    left_s: float | None


def _tiles(history: History, chosen: Sequence[StepReport]) -> Tiles:
    rewards = [each.reward for each in chosen if each.reward is not None]
    part = max(len(rewards) // 5, 1)
    first, last = rewards[:part], rewards[-part:]
    wall_s = sum(each.wall_s for each in chosen)
    tokens = sum(each.tokens for each in chosen)
    recent = [each.wall_s for each in chosen[-5:]]
    left = max(history.planned - history.step, 0)
    running = history.status == "running" and recent and left
    return Tiles(
        reward=sum(last) / len(last) if last else None,
        gained=sum(last) / len(last) - sum(first) / len(first) if len(rewards) > 1 else None,
        rollouts=sum(each.rollouts for each in chosen),
        calls=sum(each.calls for each in chosen),
        tokens=tokens,
        tokens_per_s=tokens / wall_s if wall_s else None,
        wall_s=wall_s,
        lost=sum(n for each in chosen for n in (*each.lost.values(), *each.failures.values())),
        left_s=left * sorted(recent)[len(recent) // 2] if running else None,
    )
