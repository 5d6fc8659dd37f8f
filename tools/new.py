"""Render a plugin from a template: ``python -m tools.new KIND NAME``."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
TEMPLATES: Final = ROOT / "plugins" / "_template"
_SUFFIXES: Final = frozenset({".py", ".md", ".typed"})
_TEMPLATE: Final = re.compile("template", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Kind:
    """The location of plugins of one kind."""

    source: str
    """Folder of the repository for ``agl_<name>/``."""
    layers: tuple[str, ...] = ()
    """Further import-linter contracts that limit these packages' imports."""


_APART: Final = "Integrations and plugins do not import each other"
_FACES: Final = "Plugins import packages of core by their faces"
_EXTENDED: Final = "Plugins import of core what they extend"
KINDS: Final[dict[str, Kind]] = {
    "integration": Kind(
        "integrations", (_APART, "Integrations see of core what records calls", _FACES)
    ),
    "store": Kind("plugins", (_APART, _FACES, _EXTENDED)),
    "engine": Kind("trainers", (_FACES, _EXTENDED)),
    "algorithm": Kind("plugins", (_APART, _FACES, _EXTENDED)),
    "tracker": Kind("plugins", (_APART, "Trackers see of core what they show", _FACES, _EXTENDED)),
}


def render(kind: str, name: str, root: Path) -> list[Path]:
    """Write a package and its contract test.

    Args:
        kind: One of `KINDS`.
        name: The plugin's name, such as ``openai_agents``.
        root: Root of ``<source>/agl_<name>/`` and ``tests/<source>/<name>/test_contract.py``.

    Returns:
        The files written.

    Raises:
        ValueError: the kind is unknown, or the name is not a lower-case identifier.
        FileExistsError: a file exists; nothing is overwritten.
    """
    if kind not in KINDS:
        raise ValueError(f"Unknown kind {kind!r}: use one of {', '.join(KINDS)}")
    if not name.isidentifier() or name != name.lower():
        raise ValueError(f"Name {name!r} must be a lower-case identifier, such as 'my_framework'")
    template, source = TEMPLATES / kind, KINDS[kind].source
    package = root / source / f"agl_{name}"
    targets = {
        file: package / file.name
        for file in sorted((template / "agl_template").iterdir())
        if file.suffix in _SUFFIXES
    }
    test = template / "test_contract.py"
    targets[test] = root / "tests" / source / name / test.name
    for file, target in targets.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8") as written:
            written.write(_renamed(file.read_text(encoding="utf-8"), name))
    return list(targets.values())


def _renamed(text: str, name: str) -> str:
    """Return `text` with every form of the template's name replaced by the plugin's."""
    extra = name.replace("_", "-")
    title = "".join(part.capitalize() for part in name.split("_"))
    text = text.replace("agl-core[template]", f"agl-core[{extra}]")
    text = text.replace('extra="template"', f'extra="{extra}"')
    return _TEMPLATE.sub(lambda found: title if found[0][0] == "T" else name, text)


def has_extra(kind: str) -> bool:
    """Return whether plugins of a kind register with an extra, so that libraries are installed."""
    plugin = TEMPLATES / kind / "agl_template" / "plugin.py"
    return 'extra="template"' in plugin.read_text(encoding="utf-8")


def steps(kind: str, name: str) -> str:
    """Return the remaining steps: the lines to add to ``pyproject.toml`` and ``tox.ini``."""
    source, extra = KINDS[kind].source, name.replace("_", "-")
    tests = f"tests/{source}/{name}"
    folders = f"{source}/agl_{name} {tests}"
    contracts = "\n".join(
        f'    "{each}"' for each in ("Core imports no plugin", *KINDS[kind].layers)
    )
    extras = lock = ""
    tox = f"  the section of core, AGL_TESTS\n    {tests}\n"
    install = "pip install -e ."
    if has_extra(kind):
        extras = f'  [project.optional-dependencies]\n    {extra} = ["the-library>=1.0,<2"]\n'
        tox = _environments(name, extra, source)
        install = f"pip install -e '.[{extra}]'"
        lock = f"  tox -e lock -- {name}-latest\n"
    return f"""\
Add to pyproject.toml:
{extras}  [project.entry-points.agl_core]
    {name} = "agl_{name}.plugin"
  [tool.hatch.build.targets.wheel], packages
    "{source}/agl_{name}",
  [tool.importlinter], root_packages
    "agl_{name}",
  and the same name in the lists of the contracts
{contracts}
Add to tox.ini:
{tox}Then run:
  {install}
  pytest -n 0 {tests}
  ruff check --fix {folders} && ruff format {folders}
  pyright {source}/agl_{name}
  python docs/generate.py
{lock}"""


def _environments(name: str, extra: str, source: str) -> str:
    """Return the lines of ``tox.ini`` for a plugin that needs a library."""
    return f"""\
  env_list
    {name}-latest
  labels, full
    {name}-latest, {name}-oldest, {name}-newest
  sections
    [testenv:{name}-{{latest,newest}}]
    package = editable
    extras = {extra}
    deps = pyright[nodejs]
    set_env =
        {{[testenv]set_env}}
        AGL_TESTS = tests/{source}/{name}
    commands =
        {{[testenv]commands}}
        pyright {source}/agl_{name}

    [testenv:{name}-oldest]
    skip_install = true
    deps = uv
    set_env =
        {{[testenv]set_env}}
        AGL_TESTS = tests/{source}/{name}
    commands_pre =
        uv pip install --quiet --python {{env_python}} --resolution lowest-direct .[{extra}]
"""


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 2:  # noqa: PLR2004
        sys.stderr.write(f"Usage: python -m tools.new {{{','.join(KINDS)}}} NAME\n")
        return 2
    try:
        written = render(*arguments, ROOT)
    except (ValueError, FileExistsError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    for path in written:
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
    sys.stdout.write(f"\n{steps(*arguments)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
