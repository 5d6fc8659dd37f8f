"""Write the pages of the documentation site into ``build/pages``, where ``mkdocs.yml`` reads them.

::

    python tools/pages.py && mkdocs build --strict && python -m http.server -d build/site

The pages are those of ``docs``, the README files of examples and plugins, the changelog, and one
page per face of the API. Links that leave ``docs`` are rewritten: to the page made of their target,
or else to its file in the repository.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = ROOT / "build" / "pages"
REPOSITORY: Final = "https://github.com/agl-core/agl-core/blob/main"
SOURCES: Final = (".", "plugins", "trainers")
LINK: Final = re.compile(r"(\]\()([^)\s]+)(\))")
CODE: Final = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
FACES: Final = {
    "agl_core": "What agent programs and training scripts use, as `import agl_core as agl`.",
    "agl_core.types": "The records that pass from step to step.",
    "agl_core.errors": "The errors; [one page](../errors.md) shows the tree.",
    "agl_core.interfaces": "The Protocols through which packages meet, and which plugins implement.",
    "agl_core.plugins": "Hooks and registries: what a plugin registers with.",
    "agl_core.config": "The configuration as pydantic models; [one page](../configuration.md) lists all keys.",
    "agl_core.tracing": "Scopes, spans and the identity of requests: what integrations use.",
    "agl_core.store": "The base of stores, and the stores that come with agl-core.",
    "agl_core.adapters": "Records become trajectories, batches and credit.",
    "agl_core.training": "The loop, and what advantages, losses and engines share.",
    "agl_core.app": "Configuration becomes components, components become a run.",
    "agl_core.thinking": "Thinking, separated from text.",
    "agl_core.training.advantages": "Estimators of advantages, for algorithms.",
    "agl_budget": "Prompts that fit: for programs and integrations.",
    "agl_checks": "What the checks of several frameworks look for.",
    "agl_endpoints": "Clients and servers of OpenAI-compatible endpoints.",
    "agl_events": "Events of runs: reading them, and what a bus implements.",
    "agl_privacy": "Personal data: found and masked.",
    "agl_prompts": "The base of prompt optimisers.",
    "agl_reading": "A store as pages of rows.",
    "agl_records": "Exports of records.",
    "agl_rewards": "The rewards that come with agl-core.",
    "agl_stores": "The stores of runs: found, opened and read.",
    "agl_tracking": "What trackers share.",
    "agl_testing": "Contracts of plugins: a test class inherits one and supplies what it names.",
}
"""The faces of the API reference, with a sentence for each."""


def names_of(face: str) -> list[str]:
    """Return the public names of a face, functions first.

    They are those of its ``__all__``, or what it imports under the same name, or defines.
    """
    if face == "agl_testing":
        return contracts()
    tree = ast.parse(file_of(face).read_text(encoding="utf-8"))
    names: set[str] = {
        each.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for each in node.names
        if each.asname == each.name
    }
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            names.add(node.name)
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = {*ast.literal_eval(node.value)}
    return sorted(names, key=lambda name: (not name.islower(), name))


def file_of(face: str) -> Path:
    """Return the file of a package or module of this repository."""
    for root in SOURCES:
        path = ROOT.joinpath(root, *face.split("."))
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.is_file():
                return file
    raise FileNotFoundError(f"No package {face!r} below {', '.join(SOURCES)}")


def contracts() -> list[str]:
    """Return the contract of each module ``*_contract`` of `agl_testing`, below the package."""
    files = sorted((ROOT / "plugins" / "agl_testing").glob("*_contract.py"))
    return [
        f"{file.stem}.{node.name}"
        for file in files
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name.endswith("Contract")
    ]


def sources() -> dict[Path, str]:
    """Return the pages that are files of the repository, and where they stand on the site."""
    pages = {ROOT / "README.md": "index.md", ROOT / "CONTRIBUTING.md": "contributing.md"}
    pages |= {file: file.name for file in (ROOT / "docs").glob("*.md")}
    pages[ROOT / "docs" / "benchmarks" / "README.md"] = "benchmarks/README.md"
    for folder in ("examples", "integrations", "plugins"):
        for file in (ROOT / folder).glob("*/README.md"):
            if not file.parent.name.startswith("_"):
                pages[file] = f"{folder}/{file.parent.name}.md"
    return dict(sorted(pages.items()))


def rewritten(text: str, source: Path, pages: dict[Path, str]) -> str:
    """Return a page's text with links that lead somewhere on the site; code stays as it is."""
    here = (PAGES / pages[source]).parent

    def place(match: re.Match[str]) -> str:
        link, hash_, anchor = match[2].partition("#")
        if not link or ":" in link:
            return match[0]
        target = (source.parent / link).resolve()
        if target in pages:
            found = Path(os.path.relpath(PAGES / pages[target], here)).as_posix()
        elif target.is_relative_to(ROOT / "docs" / "images"):
            image = PAGES / target.relative_to(ROOT / "docs")
            found = Path(os.path.relpath(image, here)).as_posix()
        else:
            found = f"{REPOSITORY}/{target.relative_to(ROOT).as_posix()}"
        return f"{match[1]}{found}{hash_}{anchor}{match[3]}"

    parts = CODE.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(place, part) for part in parts)


def api(face: str, says: str) -> str:
    """Return the page of a face, which mkdocstrings fills from its docstrings."""
    parts = [f"# `{face}`", says, *(f"::: {face}.{name}" for name in names_of(face))]
    return "\n\n".join(parts) + "\n"


def api_index() -> str:
    rows = [f"| [`{face}`]({face}.md) | {says} |" for face, says in FACES.items()]
    head = "# Python API\n\nThe public names of each package, from their docstrings. The rest is private.\n"
    return "\n".join([head, "| Package | What it holds |", "|---|---|", *rows]) + "\n"


def changelog() -> str:
    """Return the changelog as the next release will have it, before what was released."""
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "next"]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    released = ROOT / "CHANGELOG.md"
    older = released.read_text(encoding="utf-8") if released.exists() else ""
    draft = re.sub(r"^#", "##", done.stdout, flags=re.MULTILINE)
    return f"# Changes\n\n{draft}\n{older}"


def main() -> None:
    """Write all pages again."""
    shutil.rmtree(PAGES, ignore_errors=True)
    pages = sources() | {ROOT / "CHANGELOG.md": "changelog.md"}
    made: dict[str, str] = {}
    for file, name in pages.items():
        text = changelog() if name == "changelog.md" else file.read_text(encoding="utf-8")
        made[name] = rewritten(text, file, pages)
    made |= {f"api/{face}.md": api(face, says) for face, says in FACES.items()}
    made["api/index.md"] = api_index()
    for name, text in made.items():
        file = PAGES / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="\n")
    shutil.copytree(ROOT / "docs" / "images", PAGES / "images", dirs_exist_ok=True)
    shutil.copy(ROOT / "docs" / "theme" / "site.css", PAGES)


if __name__ == "__main__":
    main()
