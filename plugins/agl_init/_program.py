"""Facts about a program from its source, which is read and not run."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from agl_core.config import read_text
from agl_core.errors import ConfigError

_MOST_FILES: Final = 200
_NAMES: Final = ("name", "role")
"""Parameters that hold the name of the object a call creates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A required parameter."""

    name: str
    annotation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A function of a program, with the facts found in its source."""

    function: str
    file: Path
    module: str
    """Module name under which other modules import it."""
    by_file: bool
    """Whether the reference names a file."""
    parameters: tuple[Parameter, ...] | None
    """The function's required parameters; None if the source does not show them."""
    is_async: bool
    imports: frozenset[str]
    """Top-level modules that the program and the modules in its folder import."""
    agents: tuple[str, ...]
    """Texts in the source that may name agents, in source order."""


def read_program(reference: str) -> Program:
    """Find a function by ``module:function`` or ``file.py:function``.

    Raises:
        ConfigError: the reference is malformed, or the file, module or function does not exist.
    """
    location, separator, function = reference.rpartition(":")
    if not (separator and location and function.isidentifier()):
        raise ConfigError(
            f"{reference!r} names no function: write 'package.module:function' or "
            f"'file.py:function'"
        )
    by_file = location.endswith(".py")
    file = _file_of(location, reference) if by_file else _module_file(location, reference)
    tree = _parsed(file, reference)
    found = _definition(tree, function, reference)
    root = file.parent
    if not by_file:
        for _ in location.split(".")[1:]:
            root = root.parent
    trees = [tree, *_local_trees(tree, root, seen={file})]
    return Program(
        function=function,
        file=file,
        module=file.stem if by_file else location,
        by_file=by_file,
        parameters=_parameters(found, reference),
        is_async=isinstance(found, ast.AsyncFunctionDef),
        imports=frozenset(name for each in trees for name in _imports(each)),
        agents=tuple(dict.fromkeys(name for each in trees for name in _agent_names(each))),
    )


def _file_of(location: str, reference: str) -> Path:
    file = Path(location).expanduser()
    if not file.is_file():
        raise ConfigError(f"{reference!r}: there is no file {str(file.absolute())!r}")
    return file.resolve()


def _module_file(location: str, reference: str) -> Path:
    parts = location.split(".")
    if not all(part.isidentifier() for part in parts):
        raise ConfigError(f"{reference!r}: {location!r} is no module: write 'package.module'")
    base = Path.cwd().joinpath(*parts)
    for file in (base.with_suffix(".py"), base / "__init__.py"):
        if file.is_file():
            return file.resolve()
    try:  # find_spec of the dotted name would import its parent packages
        top = importlib.util.find_spec(parts[0])
    except ValueError:  # the module that runs as __main__ has no spec
        top = None
    if top is not None and top.origin is not None and Path(top.origin).is_file():
        installed = Path(top.origin)
        if parts[1:]:
            below = installed.parent.joinpath(*parts[1:])
            candidates = [below.with_suffix(".py"), below / "__init__.py"]
        else:
            candidates = [installed]
        for file in candidates:
            if file.is_file() and file.suffix == ".py":
                return file.resolve()
    raise ConfigError(
        f"{reference!r}: there is no module {location!r}; is it installed, or is its folder the "
        f"working directory {str(Path.cwd())!r}?"
    )


def _parsed(file: Path, reference: str) -> ast.Module:
    text = read_text(file, what=repr(reference))
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f", line {line}" if line else ""
        reason = getattr(error, "msg", None) or str(error)
        raise ConfigError(
            f"{reference!r}: {str(file)!r} is no Python file ({reason}{where})"
        ) from error


def _definition(tree: ast.Module, function: str, reference: str) -> ast.stmt:
    names = {name: statement for statement in _top_level(tree) for name in _bound(statement)}
    found = names.get(function)
    if isinstance(found, ast.ClassDef):
        raise ConfigError(
            f"{reference!r}: {function!r} is a class: name a function that answers one task"
        )
    if found is not None:
        return found
    functions = sorted(
        name
        for name, statement in names.items()
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef))
    )
    nearest = get_close_matches(function, functions, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise ConfigError(
        f"{reference!r}: there is no {function!r}; functions there are "
        f"{', '.join(functions) or 'none'}{hint}"
    )


def _top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements that run when the module is imported, including those in branches."""
    waiting: list[ast.stmt] = list(reversed(tree.body))
    while waiting:
        statement = waiting.pop()
        yield statement
        if isinstance(statement, (ast.If, ast.Try, ast.With)):
            inner = [each for each in ast.iter_child_nodes(statement) if isinstance(each, ast.stmt)]
            for handler in getattr(statement, "handlers", ()):
                inner += handler.body
            waiting += reversed(inner)


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, ast.Assign):
        yield from (target.id for target in statement.targets if isinstance(target, ast.Name))
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        yield statement.target.id
    elif isinstance(statement, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name for alias in statement.names)


def _parameters(found: ast.stmt, reference: str) -> tuple[Parameter, ...] | None:
    """Return the parameters without a default.

    Raises:
        ConfigError: no parameter can take a task.
    """
    if not isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    given = found.args
    positional = [*given.posonlyargs, *given.args]
    required = positional[: len(positional) - len(given.defaults)]
    required += [
        each
        for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
        if default is None
    ]
    if not required and not positional and given.vararg is None:
        raise ConfigError(f"{reference!r} takes no argument: name a function that takes a task")
    chosen = required or positional[:1]
    return tuple(
        Parameter(name=each.arg, annotation=ast.unparse(each.annotation) if each.annotation else "")
        for each in chosen
    )


def _local_trees(tree: ast.Module, root: Path, *, seen: set[Path]) -> Iterator[ast.Module]:
    """Yield the modules of the program's folder that it imports, directly or indirectly."""
    waiting = [tree]
    while waiting and len(seen) < _MOST_FILES:
        for name in sorted(_imports(waiting.pop(), whole=True)):
            base = root.joinpath(*name.split("."))
            for file in (base.with_suffix(".py"), base / "__init__.py"):
                if file.is_file() and file not in seen:
                    seen.add(file)
                    try:
                        found = _parsed(file, name)
                    except ConfigError:
                        continue  # the syntax error appears when it is imported
                    waiting.append(found)
                    yield found


def _imports(tree: ast.Module, *, whole: bool = False) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            if whole:
                names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names if whole else {name.partition(".")[0] for name in names}


def _agent_names(tree: ast.Module) -> Iterator[str]:
    """Yield literal names in calls that create an agent or a node of a graph."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
        callee = call.func
        made = callee.attr if isinstance(callee, ast.Attribute) else getattr(callee, "id", "")
        if "agent" in made.lower() or made == "add_node":
            yield from _literals(call)


def _literals(call: ast.Call) -> Iterable[str]:
    named = [word.value for word in call.keywords if word.arg in _NAMES]
    for value in named or call.args[:1]:
        if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value.strip():
            return [value.value]
    return []
