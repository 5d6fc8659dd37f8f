"""Copy the template under a framework's name: ``render.py NAME PACKAGES TESTS``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent
_SUFFIXES: Final = frozenset({".py", ".md", ".typed"})


def render(name: str, packages: Path, tests: Path) -> list[Path]:
    """Write the package below `packages` and its contract test below `tests`.

    Args:
        name: Import-like name of the framework, such as ``openai_agents``.
        packages: Folder that gets ``agl_<name>/``.
        tests: Folder that gets ``<name>/test_contract.py``.

    Returns:
        The files written.

    Raises:
        ValueError: the name is no lower-case identifier.
        FileExistsError: a file is already there; nothing is overwritten.
    """
    if not name.isidentifier() or name != name.lower():
        raise ValueError(f"Name {name!r} must be a lower-case identifier, such as 'my_framework'")
    package = packages / f"agl_{name}"
    sources = sorted((_HERE / "agl_template").iterdir())
    return [
        *(_copy(each, package / each.name, name) for each in sources if each.suffix in _SUFFIXES),
        _copy(_HERE / "test_contract.py", tests / name / "test_contract.py", name),
    ]


def _copy(source: Path, target: Path, name: str) -> Path:
    title = "".join(part.capitalize() for part in name.split("_"))
    text = source.read_text(encoding="utf-8")
    text = text.replace("agl-core[template]", f"agl-core[{name.replace('_', '-')}]")
    text = text.replace('extra="template"', f'extra="{name.replace("_", "-")}"')
    text = text.replace("Template", title).replace("template", name)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("x", encoding="utf-8") as file:
        file.write(text)
    return target


def main(arguments: Sequence[str]) -> int:
    name, packages, tests = arguments
    for path in render(name, Path(packages), Path(tests)):
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
