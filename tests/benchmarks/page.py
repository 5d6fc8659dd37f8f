"""The page ``docs/benchmarks/README.md`` with the figures of all benchmarks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"

_HEAD = """# How fast it is, beside what else there is

`tox -e bench` measures all of this, `tox -e bench -- NAME` one of `capture`, `dashboard`, `encryption`, `events`, `gateway`,
`imitation`, `import`, `integrations`, `limits`, `store`, `stores` and `together`. Each runs both sides in turn in one go, at least five times, writes every sample to
`NAME.json` beside this page, and rewrites this page. A ratio is the median of the rounds' ratios. Figures
depend on the machine and on what else it does; ratios much less. `imitation` and `together` measure what is
learned, not speed.
"""
_PEER = "agentlightning"


def text() -> str:
    """Return the page from the figures in the files."""
    parts = [_HEAD]
    for name, rows in (
        ("store", _store),
        ("stores", _stores),
        ("events", _events),
        ("encryption", _encryption),
        ("gateway", _gateway),
        ("limits", _limits),
        ("capture", _capture),
        ("integrations", _integrations),
        ("import", _import),
        ("dashboard", _dashboard),
        ("imitation", _imitation),
        ("together", _together),
    ):
        path = RESULTS / f"{name}.json"
        if path.exists():
            parts.append("\n".join(_section(name, json.loads(path.read_text()), rows)) + "\n")
    return "\n".join(parts)


def write() -> None:
    """Write the page."""
    (RESULTS / "README.md").write_text(text(), encoding="utf-8")


def _section(name: str, report: dict[str, Any], rows: Any) -> Iterator[str]:
    machine = report["machine"]
    load = ", ".join(f"{one:.1f}" for one in machine["load_before"])
    yield f"## {name}"
    yield ""
    yield (
        f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}, "
        f"{machine['platform']}; load before the run {load}."
    )
    yield ""
    yield from rows(report)


def _store(report: dict[str, Any]) -> Iterator[str]:
    yield "SQLite on disk, synchronous NORMAL, one transaction per rollout, beside the store in memory"
    yield "of agentlightning 0.3.0. A rollout has ten spans of 480 token ids, 80 log-probabilities and"
    yield "1 KB of text."
    yield ""
    yield from _table(
        "Rollouts per second", "agl-core", _PEER, "ratio", "processor time", _PEER, "ratio"
    )
    for name, what in (
        ("ingest", "spans written, one rollout after the other"),
        ("lifecycle", "16 workers: enqueue, claim, make and add spans, finish, wait, query"),
    ):
        medians, ratio = report["medians"][name], report["ratios"][name]
        used = report["processor_medians_us"][name]
        yield _row(
            what,
            f"{medians['ours']:.0f}",
            f"{medians[_PEER]:.0f}",
            f"{ratio:.1f}",
            f"{used['ours'] / 1e3:.1f} ms",
            f"{used[_PEER] / 1e3:.1f} ms",
            f"{report['processor_ratios'][name]:.1f}",
        )
    yield ""
    yield "From a thousand to a million spans (without tokens), writing one takes"
    yield f"{report['growth']['ingest']:.2f} times as long and reading a rollout"
    yield f"{report['growth']['query']:.2f} times."


def _stores(report: dict[str, Any]) -> Iterator[str]:
    yield "SQLite in a file, and PostgreSQL on a server of the same machine with fsync on, each with one"
    yield "process as its client, beside the store in memory of agentlightning 0.3.0, with the rollouts of"
    yield "`store`. Processor time is that of client and server."
    yield ""
    yield from _table("", "SQLite", "PostgreSQL", _PEER, "PostgreSQL's ratio")
    sides = ("sqlite", "postgres", _PEER)
    for name, what in (
        ("ingest", "spans written, one rollout after the other"),
        ("lifecycle", "16 workers, from enqueueing to reading back"),
    ):
        medians, used = report["medians"][name], report["processor_medians_us"][name]
        yield _row(
            f"rollouts per second: {what}",
            *(f"{medians[side]:.0f}" for side in sides),
            f"{report['ratios'][name]['postgres']:.1f}",
        )
        yield _row(
            f"processor time per rollout: {what}",
            *(f"{used[side] / 1e3:.1f} ms" for side in sides),
            f"{report['processor_ratios'][name]['postgres']:.1f}",
        )
    for name, what in (("ingest", "us per span written"), ("query", "us per rollout read")):
        for size in report["growth"][name]["sqlite"]:
            grown = [1e6 * report["growth"][name][side][size] for side in ("sqlite", "postgres")]
            yield _row(f"{what}, {int(size):,} spans", *(f"{each:.0f}" for each in grown), "", "")


def _events(report: dict[str, Any]) -> Iterator[str]:
    yield "The lifecycle above with the three events of a rollout, which are written to the outbox on disk,"
    yield "read, and removed when a bus confirms them at once, and without."
    yield ""
    yield from _table("", "with events", "without", "ratio")
    for store in report["ratios"]:
        medians, used = report["medians"][store], report["processor_medians_us"][store]
        rates = [f"{medians[side]:.0f}" for side in ("with", "without")]
        times = [f"{used[side] / 1e3:.2f} ms" for side in ("with", "without")]
        ratios = (report[name][store] for name in ("ratios", "processor_ratios"))
        rate, processor = (f"{each:.2f}" for each in ratios)
        yield _row(f"{_STORES[store]}: rollouts per second", *rates, rate)
        yield _row(f"{_STORES[store]}: processor time per rollout", *times, processor)


_STORES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


def _limits(report: dict[str, Any]) -> Iterator[str]:
    settings = report["settings"]
    yield f"The gateway with {settings['in_flight']} requests in flight and two limits that are never reached, of the"
    yield "agent and of the address, and without; client, backend, gateway and Redis share the cores."
    yield ""
    yield from _table("", "requests/s", "ratio", "processor time", "ratio")
    for side, what in (
        ("without", "without limits"),
        ("memory", "in memory"),
        ("redis", "in Redis"),
    ):
        ratios = [report[name].get(side, 1.0) for name in ("ratios", "processor_ratios")]
        yield _row(
            what,
            f"{report['medians'][side]:.0f}",
            f"{ratios[0]:.2f}",
            f"{report['processor_medians_us'][side]:.0f} us",
            f"{ratios[1]:.2f}",
        )


def _encryption(report: dict[str, Any]) -> Iterator[str]:
    yield "The rollouts above: nothing encrypted, everything, and everything but token ids and"
    yield "log-probabilities. The ratio is that of everything."
    yield ""
    yield from _table("Processor time per rollout", "none", "all", "without tokens", "ratio")
    for key, used in report["processor_medians_us"].items():
        store, what = key.split()
        times = [f"{used[side] / 1e3:.2f} ms" for side in ("none", "all", "without_tokens")]
        ratio = f"{report['processor_ratios'][key]['all']:.2f}"
        yield _row(f"{_STORES[store]}: {_WORK[what]}", *times, ratio)


_WORK = {
    "ingest": "spans written, one rollout after the other",
    "lifecycle": "16 workers, from enqueueing to reading back",
}


def _gateway(report: dict[str, Any]) -> Iterator[str]:
    yield "In front of a backend that answers at once, beside a plain FastAPI and httpx proxy that keeps"
    yield "the same records in a list; client, backend and proxy share the cores."
    yield ""
    head = (
        "requests/s",
        "plain",
        "ratio",
        "added latency, median",
        "plain",
        "processor time",
        "plain",
    )
    yield from _table("In flight", *head)
    for load, medians in report["medians"].items():
        ours, plain = medians["ours"], medians["plain"]
        added = report["added_ms"][load]
        yield _row(
            load,
            f"{ours['requests_per_s']:.0f}",
            f"{plain['requests_per_s']:.0f}",
            f"{report['ratios'][f'rps_{load}']:.1f}",
            f"{added['ours']['p50_ms']:.1f} ms",
            f"{added['plain']['p50_ms']:.1f} ms",
            f"{ours['cpu_us_per_request']:.0f} µs",
            f"{plain['cpu_us_per_request']:.0f} µs",
        )
    ours, plain = (
        report["medians"]["1000"][side]["clients_answered"] for side in ("ours", "plain")
    )
    yield ""
    yield f"Of 1000 clients at once, agl-core answered {ours:.0f} and the plain proxy {plain:.0f}."


def _capture(report: dict[str, Any]) -> Iterator[str]:
    medians = report["medians"]
    yield "What recording takes of a model call's processor time in the agent's process:"
    yield f"{medians['handler']:.0f} µs with LangChain's handler, {medians['handler_and_wire']:.0f} µs with the"
    yield f"preparation of the request as well; {medians['neither']:.0f} µs with neither. LangChain's own recorder"
    yield f"of runs in memory, which sees no request, takes {medians['run_collector']:.0f} µs in the handler's place."


_KINDS = {
    "model_call": "model call",
    "tool_call": "tool call",
    "run": "agent with one model call",
    "whole_run": "the same, as the difference of runs",
}


def _integrations(report: dict[str, Any]) -> Iterator[str]:
    yield "What recording takes of a call, timed where it is entered: the callbacks, what"
    yield "is put around functions of the framework and, with agl-core, the preparation of the request; beside"
    yield "OpenInference's instrumentation of that framework, with its spans kept in memory. The program is one"
    yield "agent whose model answers in the process. The plain client of OpenAI has no tools of its own. Not in"
    yield "it is what a framework does to call a callback. The last row of each has that too: what whole runs of"
    yield "the agent took longer than without, of which much is chance. After ± is the standard error of the"
    yield "median; a ratio is that of the medians, and there is none where a figure is within its error."
    yield "OpenInference has no instrumentation of AgentScope."
    yield ""
    yield from _table("Framework", "", "agl-core", "OpenInference", "ratio")
    for framework, kinds in report["us"].items():
        for kind, figures in kinds.items():
            errors = report["errors_us"][framework][kind]
            cells = [f"{figure:.0f} ± {errors[side]:.0f} µs" for side, figure in figures.items()]
            ratio = report["ratios"][framework].get(kind)
            if ratio is None:
                yield _row(framework, _KINDS[kind], *cells, "–", "–")
                continue
            seen = all(figure > errors[side] for side, figure in figures.items())
            yield _row(framework, _KINDS[kind], *cells, f"{ratio:.2f}" if seen else "–")


def _import(report: dict[str, Any]) -> Iterator[str]:
    medians = report["medians"]
    yield f"`import agl_core` takes {medians['ours']:.3f} s more than bare Python,"
    yield f"`import agentlightning` {medians[_PEER]:.1f} s."


_SHOWN = {
    "empty": "first rows, empty cache",
    "cached": "first rows, cached",
    "turn": "next page",
}


def _dashboard(report: dict[str, Any]) -> Iterator[str]:
    build, targets = report["build"], report["targets_ms"]
    yield f"The page of rollouts in Chromium, of a store of {report['rollouts']:,} rollouts: milliseconds from"
    yield "opening the address, or from the click on the next page, until rows are painted. Beside it a page of"
    yield "NiceGUI with the same rows from the same index, and the dashboard of agentlightning 0.3.0 over"
    yield f"{report['peer_rollouts']:,} rollouts in memory. On a machine that does nothing else, the targets are"
    yield f"{targets['empty']} ms for the first rows and {targets['turn']} ms for the next page."
    yield ""
    yield from _table("Milliseconds", "agl-core", "NiceGUI", "ratio", _PEER, "ratio")
    for what, title in _SHOWN.items():
        medians, ratios = report["medians"][what], report["ratios"][what]
        yield _row(
            title,
            f"{medians['ours']:.0f}",
            f"{medians['nicegui']:.0f}",
            f"{ratios['nicegui']:.2f}",
            f"{medians[_PEER]:.0f}",
            f"{ratios[_PEER]:.2f}",
        )
    yield ""
    yield f"Without an index, all rollouts are listed after {build['rows_s']:.0f} s; rewards, tokens and words of all are"
    yield f"in the index, of {build['bytes'] / 1e6:.0f} MB, after {build['all_s']:.0f} s."


def _imitation(report: dict[str, Any]) -> Iterator[str]:
    settings, seeds = report["settings"], len(report["seeds"])
    yield "SFT then GRPO against GRPO alone: rollouts until the score that GRPO alone has at its end,"
    yield f"{_spread(report['target'], '.2f')}. The world is {settings['world']}."
    yield f"GRPO: {settings['grpo']}. SFT: {settings['sft']}; they cost no rollouts."
    yield f"Score: {settings['score']}. Means over {seeds} seeds with 95 % intervals (Student's t);"
    yield f"an arm that does not reach the score counts as {report['rollouts']} rollouts."
    yield ""
    yield from _table("", "rollouts", "not reached", "held-out score at the end")
    for arm, what in (("grpo", "GRPO alone"), ("sft_grpo", "SFT, then GRPO")):
        reached, missed = report["reached"][arm], report["not_reached"][arm]
        held_out = _spread(report["held_out"][arm], ".2f")
        yield _row(what, _spread(reached, ".0f"), f"{missed} of {seeds}", held_out)
    yield _row("fewer with SFT", _spread(report["saved"], ".0f"), "", "")


def _together(report: dict[str, Any]) -> Iterator[str]:
    settings, seeds = report["settings"], len(report["seeds"])
    yield "Prompts and weights in turn, and each alone, at equal rollouts, evaluations on validation tasks"
    yield f"included. The world is {settings['world']}."
    yield f"The editor is {settings['editor']}. Score: {settings['score']};"
    yield f"before, it is {_spread(report['before'], '.2f')}. Means over {seeds} seeds with 95 % intervals (Student's t)."
    yield ""
    yield from _table("", "", "rollouts", "score", "in turn scores higher by")
    names = {"prompts": "prompts alone", "weights": "weights alone", "both": "in turn"}
    for arm, name in names.items():
        gain = report["gain"].get(arm)
        yield _row(
            name,
            settings[arm],
            f"{report['rollouts'][arm]['mean']:.0f}",
            _spread(report["scores"][arm], ".2f"),
            _spread(gain, "+.2f") if gain else "",
        )


def _spread(value: dict[str, float], form: str) -> str:
    return f"{value['mean']:{form}} [{value['low']:{form}}, {value['high']:{form}}]"


def _table(*head: str) -> Iterator[str]:
    yield _row(*head)
    yield _row(*("---" for _ in head))


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"
