"""Names of modules and types: an underscore marks what is private, and a name means one thing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("integrations", "plugins", "trainers", "examples")
"""Folders that are not part of an import name."""
IMPORTED = re.compile(r"agl_\w+(?:\.[a-z]\w*)*\.\w+$")
"""A module of an import package, not below a package that is private already."""
NAME = re.compile(r"\bagl_\w+(?:\.\w+)+")
LINE = re.compile(r'^\w+ = "(agl_[\w.]+)', re.MULTILINE)
"""An entry point."""


def dotted(path):
    """Return a module's import name; a package is named as its ``__init__`` is."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] in FOLDERS else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def mentioned(path):
    """Return what a file imports, or names in a text as the registries do."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return set(LINE.findall(source) if path.suffix == ".toml" else NAME.findall(source))
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= set(NAME.findall(node.value)) if "\n" not in node.value else set()
    return found


def sources():
    for folder in ("agl_core", *FOLDERS):
        yield from sorted((ROOT / folder).rglob("*.py"))


def users():
    """Yield what may import: the name of a module or the path of a file, and what it mentions.

    The documents and the plugin of a third party use public modules; our tests may use every module.
    """
    for path in sources():
        yield dotted(path), mentioned(path)
    documents = [ROOT / "pyproject.toml", *ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    for path in (*documents, *(ROOT / "tests/plugin_package").rglob("*.py")):
        yield path.name, mentioned(path)


def misnamed():
    """Return the modules whose name has an underscore too many or too few, by their paths.

    Examples are programs to read; nothing imports them.
    """
    modules = {
        dotted(path): path
        for path in sources()
        if not path.stem.startswith("__")
        and "examples" not in path.parts
        and IMPORTED.match(dotted(path))
    }
    public = {name for name in modules if re.fullmatch(r"agl_testing\.[a-z]\w+", name)}
    for user, names in users():
        for name in names:
            parts = name.split(".")
            for end in range(2, len(parts) + 1):
                package, module = ".".join(parts[: end - 1]), ".".join(parts[:end])
                if module in modules and user != package and not user.startswith(f"{package}."):
                    public.add(module)
    return {
        path: name not in public
        for name, path in modules.items()
        if (name in public) == path.stem.startswith("_")
    }


def test_an_underscore_marks_the_modules_that_a_package_keeps_for_itself():
    assert misnamed() == {}, "True: only its package uses it, name it with an underscore"


ONE_TERM = {
    "AglMiddleware": "both frameworks call it middleware",
    "CrossEntropy": "the same loss in two trainers",
    "Message": "a chat message, as each reader of conversations types it",
    "PromptBudgetMiddleware": "both frameworks call it middleware",
    "Report": "the public one adds the export of weights",
}
"""Public names of types that several modules define for one meaning, each with its reason."""
OTHERS = ("plugins/agl_testing/toy_framework.py", "plugins/agl_compat/")
"""Modules whose names are those of a framework or of another library."""


def named_types(path):
    """Yield the public classes and aliases of types that a module defines; None for a class."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.ClassDef(name=name):
                yield name, None
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if not name.isupper():
                yield name, ast.unparse(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, ast.unparse(value)
            case _:
                pass


def test_a_public_name_of_a_type_means_one_thing():
    defined = {}
    for root in (".", "integrations", "plugins", "trainers"):
        for path in sorted((ROOT / root).glob("agl_*/**/*.py")):
            place = path.relative_to(ROOT).as_posix()
            for name, alias in named_types(path) if not place.startswith(OTHERS) else ():
                if re.fullmatch(r"[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*", name):
                    defined.setdefault(name, {})[place] = alias
    twice = {
        name: places
        for name, places in defined.items()
        if len(places) > 1 and (None in places.values() or len({*places.values()}) > 1)
    }
    assert twice.keys() == ONE_TERM.keys(), "Name types so that each name means one thing"
