"""Run both optimisers with several seeds, and compare them: ``python compare.py --seeds 3``.

Each run has the settings of ``run.toml``. Its prompt is then scored, with the one that it began
with, on requests that neither improved nor chose a prompt.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OPTIMIZERS = ("apo", "gepa")


def measured(optimizer: str, seed: int, out: Path, settings: list[str]) -> dict[str, Any]:
    """Run an optimiser with a seed, and score what it began with and what it found."""
    name = f"{optimizer}-{seed}"
    own = [f"phases.0.optimizer={optimizer}", f"seed={seed}", f"name={name}", f"directory={out}"]
    report = agl("train", HERE / "run.toml", [*own, *settings])
    held_out = [f"tasks.val={HERE / 'run_agent.py'}:held_out_tasks"]
    versions = ["--prompts", "before", "--prompts", "best"]
    scores = agl("eval", out / name, held_out, *versions)
    editing = [
        row
        for line in (out / name / "prompts" / f"0-{optimizer}.jsonl").open(encoding="utf-8")
        if (row := json.loads(line))["event"] == "edit"
    ]
    return {
        "optimizer": optimizer,
        "seed": seed,
        "before": scores["versions"][0]["evaluation"]["score"],
        "after": scores["versions"][1]["evaluation"]["score"],
        "difference": scores["difference"],
        "rollouts": report["rollouts"],
        "calls": Counter(row["role"] for row in editing),
        "tokens": sum(row["tokens"] for row in editing),
        "wall_s": report["wall_s"],
        "prompt": report["prompts"]["selector"]["text"],
        "lost": report["lost"],
    }


def agl(command: str, target: Path, settings: list[str], *options: str) -> dict[str, Any]:
    """Run a command of agl and return its JSON."""
    line = [sys.executable, "-m", "agl_core.cli", command, str(target), "--json", "-", *options]
    for setting in settings:
        line += ["--set", setting]
    done = subprocess.run(line, stdout=subprocess.PIPE, check=True)  # noqa: S603
    return json.loads(done.stdout)


def shown(row: dict[str, Any]) -> str:
    """Return a run as a row of a table."""
    before, after = (
        "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**row[name]) for name in ("before", "after")
    )
    cells = (
        f"`{row['optimizer']}`, {row['seed']}",
        before,
        after,
        row["rollouts"],
        row["calls"]["critic"],
        row["calls"]["editor"],
        row["tokens"],
        f"{row['wall_s']:.0f} s",
    )
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python compare.py", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 1 to N")
    parser.add_argument("--out", type=Path, default=Path("agl_runs/rooms"), help="folder of runs")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print("| Optimiser, seed | Before | After | Rollouts | Critic | Editor | Tokens | Time |")
    print("|---|---|---|---|---|---|---|---|")
    for seed in range(1, options.seeds + 1):
        for optimizer in OPTIMIZERS:
            rows.append(measured(optimizer, seed, options.out, options.set))
            print(shown(rows[-1]), flush=True)
            (options.out / "compare.json").write_text(json.dumps(rows, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
