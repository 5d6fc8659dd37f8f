"""Draw ``docs/images/demo.svg``: the terminal of a real ``agl demo``.

::

    python tools/terminal.py            # in an environment with the extra `demo`; takes minutes
    python tools/terminal.py FILE       # from what a run of it printed
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

ROOT: Final = Path(__file__).parents[1]
IMAGE: Final = ROOT / "docs" / "images" / "demo.svg"
STEPS: Final = (1, 5, 10, 15, 20)
"""The steps that the picture shows."""
WIDTH: Final = 76
STYLES: Final = {
    r"^\$.*": "bold green",
    r"^(?:before|after): .*": "bold cyan",
    r"^ *(?:planner|writer):": "magenta",
    r"reward \d\.\d+": "bold yellow",
    r"^writer +(?:before|after) +\d\.\d+": "bold yellow",
}


def demo() -> str:
    """Return what the demo prints; it runs in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "agl_core.cli", "demo"]
        done = subprocess.run(
            command,
            cwd=folder,
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    return done.stdout


def shown(output: str) -> Iterator[str]:
    """Yield the lines of the picture: some steps, the answers, and the scores.

    Times are left out, as they say more about the machine than about the demo.
    """
    yield "$ agl demo"
    lines = output.splitlines()
    for line in lines:
        step = re.match(r"(step (\d+)/\d+  reward [\d.]+)  ", line)
        if step is not None and int(step[2]) in STEPS:
            yield step[1]
    yield ""
    for line in lines:
        if re.match(r"before: |after: |  +(?:planner|writer): |writer +(?:before|after) ", line):
            if line.startswith(("after: ", "writer before")):
                yield ""
            yield line


def picture(lines: list[str]) -> str:
    """Return the lines as SVG, which loads nothing."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    for line in lines:
        text = Text(line, no_wrap=True, overflow="ellipsis")
        for pattern, style in STYLES.items():
            text.highlight_regex(pattern, style)
        console.print(text)
    svg = console.export_svg(title="agl demo", unique_id="demo", font_aspect_ratio=0.61)
    svg = re.sub(r"\s*<!-- .*? -->", "", svg)
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono")


def main(arguments: list[str]) -> None:
    """Draw what the demo prints; with the name of a file, what it printed there."""
    output = Path(arguments[0]).read_text(encoding="utf-8") if arguments else demo()
    IMAGE.parent.mkdir(exist_ok=True)
    IMAGE.write_text(picture([*shown(output)]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
