"""Finds where code changes modules and classes of others, by reading it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

OWN = ("agl_",)
SETTERS = ("setattr", "delattr")
PATCHES = {"Patch": (1, 2), "_patch": (0, 1), "_wrap": (0, 1), "Shadow": (0, 1)}
"""Callables that wrap a function of others: which arguments are its owner and its name."""
MOCKS = ("mock", "monkeypatch", "pytest_mock", "wrapt", "gorilla")
TABLES = ("__dict__", "modules")
"""Attributes by whose entries a module or class is changed as well: ``sys.modules[...] = ...``."""


def touch_points(file: Path) -> list[str]:
    """Return what a file changes of others, in its order: ``owner.name``, as the file spells them.

    These are the functions that it gives to `Patch` and its kin, what it sets or deletes by `setattr` and
    `delattr` on anything but ``self``, assignments to attributes of what it has imported from
    others, and libraries for patching that it imports.
    """
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = [*_assigned(tree, _foreign(tree, file)), *_called(tree), *_mocked(tree)]
    return [text for _, text in sorted(found)]


def _foreign(tree: ast.Module, file: Path) -> set[str]:
    """Return names of the file that stand for modules, classes and functions of others."""
    own = {path.stem for path in file.parent.parent.rglob("*") if not path.name.startswith("__")}
    names: set[str] = set()
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            module = (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
            root = module.partition(".")[0]
            relative = isinstance(node, ast.ImportFrom) and node.level
            if not (relative or root.startswith(OWN) or root in own):
                names.add(alias.asname or alias.name.partition(".")[0])
    while more := {*_aliases(tree, names)} - names:
        names |= more
    return names


def _aliases(tree: ast.Module, foreign: set[str]) -> Iterator[str]:
    """Yield names that are set to a foreign name, or to an attribute of one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _root(node.value) in foreign:
            yield from (each.id for each in node.targets if isinstance(each, ast.Name))
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                if _root(value) in foreign:
                    yield name
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                if _root(value) in foreign:
                    yield name
            case _:
                pass


def _root(node: ast.expr) -> str:
    """Return the first name of ``a.b.c``; empty for anything else."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _assigned(tree: ast.Module, foreign: set[str]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                pass
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                targets = [target]
            case _:
                continue
        for target in _flat(targets):
            table = target.value if isinstance(target, ast.Subscript) else None
            into = isinstance(table, ast.Attribute) and table.attr in TABLES
            changed = table if into else target
            if isinstance(changed, ast.Attribute) and _root(changed) in foreign:
                yield node.lineno, ast.unparse(changed)


def _flat(targets: list[ast.expr]) -> Iterator[ast.expr]:
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            yield from _flat(target.elts)
        else:
            yield target


def _called(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func).rpartition(".")[2]
        setter = called in SETTERS and len(node.args) > 1 and ast.unparse(node.args[0]) != "self"
        if not (setter or called in PATCHES):
            continue
        first, second = PATCHES.get(called, (0, 1))
        owner, name = ast.unparse(node.args[first]), node.args[second]
        text = name.value if isinstance(name, ast.Constant) else f"[{ast.unparse(name)}]"
        yield node.lineno, f"{owner}.{text}"


def _mocked(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for module in modules:
            if set(module.split(".")) & set(MOCKS):
                yield node.lineno, f"import {module}"


def literals(file: Path, name: str) -> list[str]:
    """Return the texts in what a file sets a name to: in a table of functions to wrap, their names."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=found), value=ast.expr() as value):
                pass
            case _:
                continue
        if found == name:
            rows = value.keys if isinstance(value, ast.Dict) else getattr(value, "elts", [value])
            return [_row(row) for row in rows]
    raise AssertionError(f"{file} has no {name}")


def _row(row: ast.expr | None) -> str:
    parts = row.elts if isinstance(row, ast.Tuple) else [row]
    head = [ast.unparse(part) for part in parts[:1] if isinstance(part, ast.Name)]
    texts = [part.value for part in parts if isinstance(part, ast.Constant)]
    return ".".join([*head, *map(str, texts[:1])])
