"""Measure the size and shape of the code: ``python -m tools.measure``."""

from __future__ import annotations

import ast
import graphlib
import io
import os
import statistics
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

import grimp

ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = ("", "integrations", "trainers", "plugins", "examples")
"""Folders that are not part of an import name."""
SHORT: Final = 120
"""Lines under which a module with one importer counts."""
IMPORTS: Final = 11
"""Number of runs for the median import time."""
_FIRST_REQUEST: Final = """
import os, sys, tempfile
import agl_core

def agent(task):
    names = [name for name in sys.modules if name.partition(".")[0] == "agl_core"]
    print(*sorted(names))
    sys.stdout.flush()
    os._exit(0)

agl_core.train(
    agent,
    ["one task"],
    agents=["agent"],
    model="bandit",
    config={
        "directory": tempfile.mkdtemp(),
        "engine": "bandit",
        "plugins": ["tests/core/app/bandit_plugin.py"],
        "rollout": {"concurrency": 1},
    },
    progress=False,
)
"""
"""A training run whose agent is about to send its first request."""
_NO_CODE: Final = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
    }
)


@dataclass(frozen=True, slots=True)
class Size:
    """Size of one package."""

    package: str
    files: int
    lines: int
    """Including docstrings, comments and blanks."""
    code: int
    """Lines that contain code."""
    functions: int
    function_median: float
    """Lines of code in a function, including nested functions."""
    function_longest: int


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of agl_core's import graph."""

    single: int
    """Modules under `SHORT` lines with one importer, which is in the same folder."""
    cycle: list[str]
    """Modules of one import cycle."""


def packages() -> Iterator[Path]:
    """Yield every import package of the repository."""
    for source in SOURCES:
        for folder in sorted((ROOT / source).glob("agl_*")):
            if (folder / "__init__.py").exists():
                yield folder


def code_lines(source: str) -> set[int]:
    """Return the numbers of the lines that contain code: no blanks, comments or docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=last):
                lines.difference_update(range(first, last + 1))
            case _:
                pass
    return lines


def size_of(folder: Path) -> Size:
    """Measure one package."""
    files = sorted(folder.rglob("*.py"))
    total = code = 0
    functions: list[int] = []
    for path in files:
        source = path.read_text("utf-8")
        lines = code_lines(source)
        total += source.count("\n")
        code += len(lines)
        functions += [
            sum(node.lineno <= line <= (node.end_lineno or 0) for line in lines)
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
    return Size(
        folder.name,
        len(files),
        total,
        code,
        len(functions),
        statistics.median(functions) if functions else 0,
        max(functions, default=0),
    )


def shape_of_core() -> Shape:
    """Measure agl_core's import graph."""
    graph = grimp.build_graph("agl_core", cache_dir=None)
    single = 0
    for module in graph.modules:
        path = ROOT / Path(*module.split("."))
        file = path.with_suffix(".py")
        if not file.exists():
            continue
        importers = graph.find_modules_that_directly_import(module)
        if len(importers) == 1 and file.read_text("utf-8").count("\n") < SHORT:
            (importer,) = importers
            single += importer.rpartition(".")[0] == module.rpartition(".")[0]
    return Shape(single, _cycle(graph))


def _cycle(graph: grimp.ImportGraph) -> list[str]:
    """Return the modules of one import cycle; empty if there is none."""
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def before_first_request() -> list[str]:
    """Return modules of agl_core that ``agl.train`` has imported when an agent begins.

    Only the plugins of the engine and of the HTTP libraries are loaded, and no progress is
    displayed.
    """
    others = {entry.name for entry in metadata.entry_points(group="agl_core")} - {"http_clients"}
    done = subprocess.run(
        [sys.executable, "-c", _FIRST_REQUEST],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "AGL_DISABLE_PLUGINS": ",".join(sorted(others))},
    )
    return done.stdout.split()


def import_seconds() -> float:
    """Return the median time of ``import agl_core`` minus that of bare Python, in seconds."""
    program = "import time; start = time.perf_counter(); import agl_core; print(time.perf_counter() - start)"
    times = [
        float(
            subprocess.run(
                [sys.executable, "-c", program],
                check=True,
                capture_output=True,
                text=True,
                cwd=ROOT,
            ).stdout
        )
        for _ in range(IMPORTS)
    ]
    return statistics.median(times)


def main() -> None:
    """Print the figures."""
    sizes = [size_of(folder) for folder in packages()]
    shape = shape_of_core()
    for size in sizes:
        sys.stdout.write(
            f"{size.package:20s} {size.files:4d} files  {size.code:6d} lines of code  "
            f"{size.lines:6d} lines  functions {size.functions:5d}, median "
            f"{size.function_median:g}, longest {size.function_longest}\n"
        )
    sys.stdout.write(
        f"agl_core: {shape.single} modules under {SHORT} lines with one importer, in their folder; "
        f"import cycle: {' -> '.join(shape.cycle) or 'none'}\n"
        f"import agl_core: {import_seconds():.3f} s\n"
        f"before the first request of agl.train: {len(before_first_request())} files of agl_core\n"
    )


if __name__ == "__main__":
    main()
