# ruff: noqa: INP001 - a script, not a package
"""Fill the generated parts of the documentation from the code that they describe.

::

    python docs/generate.py            # write
    python docs/generate.py --check    # change nothing, fail if a page is stale

A page marks such a part with ``<!-- generated:NAME -->`` and ``<!-- /generated -->``, where NAME is
a key of `PARTS`. The output depends only on the checkout, not on other installed packages.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import click
from agl_prompts import StudyOptions
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agl_core import _builtin as builtin
from agl_core import errors
from agl_core.cli.group import (
    AglGroup,
    CliState,
    cli,
    debug_option,
    json_option,
    plugin_option,
    set_option,
)
from agl_core.config import RunConfig
from agl_core.config.text import read_config
from agl_core.plugins import Kind, PluginManager
from agl_core.plugins._manager import Source
from agl_core.plugins._specs import ObserveSpecs, RegisterSpecs
from agl_core.plugins.registry import KINDS

ROOT = Path(__file__).resolve().parent.parent
PART = re.compile(r"(<!-- generated:(\w+) -->\n).*?(<!-- /generated -->)", re.DOTALL)
SINGULAR = {"losses": "loss", "diagnoses": "diagnosis"}
TYPES: dict[Any, str] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "boolean",
    Any: "anything",
    NoneType: "none",
}
_SEVERAL = 3
"""An option that so many have is written once."""
BOUNDS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}

Row = tuple[str, ...]


def table(head: Row, rows: list[Row]) -> str:
    """Return a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _prose(docstring: str | None) -> str:
    """Convert a docstring's inline literals to Markdown."""
    return re.sub(r"``(.+?)``", r"`\1`", inspect.cleandoc(docstring or ""))


def project() -> dict[str, Any]:
    """Return the ``[project]`` table."""
    return read_config(ROOT / "pyproject.toml")["project"]


def own_plugins() -> PluginManager:
    """Return the plugins of this checkout, without other installed ones."""
    wheel = read_config(ROOT / "pyproject.toml")["tool"]["hatch"]["build"]["targets"]["wheel"]
    roots = dict.fromkeys(str((ROOT / package).parent) for package in wheel["packages"])
    sys.path.extend(root for root in roots if root not in sys.path)
    manager = PluginManager(environ={})
    manager.load_builtin(builtin)
    for name, module in sorted(project()["entry-points"]["agl_core"].items()):
        manager.register(import_module(module), Source(name=name, distribution="agl-core"))
    return manager


def plugins() -> str:
    """Return the plugins of agl-core, by kind; commands have a page of their own."""
    manager = own_plugins()
    rows: list[Row] = []
    for kind in (kind for kind in KINDS if kind != "commands"):
        for entry in manager.registry(kind).registrations():
            own = entry.plugin if entry.plugin in project()["optional-dependencies"] else None
            owner = entry.extra or own
            install = f"`agl-core[{owner}]`" if owner else "`agl-core`"
            summary = _prose(entry.summary[:1].upper() + entry.summary[1:])
            rows.append((SINGULAR.get(kind, kind[:-1]), f"`{entry.name}`", install, summary))
    return table(("Kind", "Name", "Install", "What it is"), rows)


def extras() -> str:
    """Return every extra with its version ranges."""
    rows = [
        (f"`{name}`", ", ".join(f"`{requirement}`" for requirement in requirements))
        for name, requirements in project()["optional-dependencies"].items()
    ]
    return table(("Extra", "Brings"), rows)


def config() -> str:
    """Return the configuration tree, one table per section."""
    return "\n\n".join(_sections(RunConfig, ""))


def options() -> str:
    """Return the options of every engine, algorithm, reward, store and tracker of agl-core."""
    manager = own_plugins()
    parts: list[str] = []
    for kind, where in (
        ("engines", "engine"),
        ("algorithms", "algorithm"),
        ("rewards", "rewards"),
        ("stores", "store"),
        ("trackers", "trackers"),
    ):
        registry = manager.registry(kind)  # pyright: ignore[reportArgumentType]
        found = {name: registry.options_model(name) for name in registry.names()}
        models = {name: model for name, model in found.items() if model and model.model_fields}
        shared = _shared_fields(models)
        if shared:
            parts.append(f"### `{where}`: options that several have")
            rows = [
                (*row, ", ".join(f"`{name}`" for name in names)) for row, names in shared.items()
            ]
            parts.append(table(("Key", "Type", "Default", "Meaning", "With the name"), rows))
        for name, model in models.items():
            title = f'### `{where}` with `name = "{name}"`'
            without = {row[0].strip("`") for row, names in shared.items() if name in names}
            if without < set(model.model_fields):
                parts += [title, *_sections(model, where, titled=False, without=without)]
    return "\n\n".join(parts)


def _shared_fields(models: Mapping[str, type[BaseModel]]) -> dict[Row, list[str]]:
    """Return the rows that are equal in three models or more, with the models' names."""
    found: dict[Row, list[str]] = {}
    for name, model in models.items():
        for key, field in model.model_fields.items():
            if _model_in(field.annotation, key) is None:
                found.setdefault(_row(field.alias or key, field), []).append(name)
    return {row: names for row, names in found.items() if len(names) >= _SEVERAL}


def _row(key: str, field: FieldInfo) -> Row:
    return (f"`{key}`", _type(field), _default(field), _prose(field.description))


def optimizers() -> str:
    """Return the options that all prompt optimisers share, then those of each."""
    registry = own_plugins().registry("optimizers")
    parts = [*_sections(StudyOptions, "optimizers.<name>")]
    for name in registry.names():
        model = registry.options_model(name)
        if model is not None:
            parts += _sections(model, f"optimizers.{name}", without=set(StudyOptions.model_fields))
    return "\n\n".join(parts)


def _sections(
    model: type[BaseModel], path: str, *, titled: bool = True, without: Collection[str] = ()
) -> Iterator[str]:
    """Yield tables of a model and of the models inside it, outermost first.

    Args:
        model: The model.
        path: Path of its keys.
        titled: Whether its table has a title.
        without: Names of fields that are left out.
    """
    inner: list[tuple[type[BaseModel], str]] = []
    rows: list[Row] = []
    for name, field in model.model_fields.items():
        if name in without:
            continue
        key = field.alias or name
        found = _model_in(field.annotation, f"{path}.{key}" if path else key)
        if found is not None:
            if found[0] not in [model for model, _ in inner]:
                inner.append(found)
            if found[1].endswith(key) and NoneType not in get_args(field.annotation):
                continue
        rows.append(_row(key, field))
    if titled:
        yield f"### `{path}`" if path else "### Top level"
    yield table(("Key", "Type", "Default", "Meaning"), rows)
    for each, where in inner:
        yield from _sections(each, where)


def _model_in(annotation: Any, path: str) -> tuple[type[BaseModel], str] | None:
    """Return the model in a field, and the path of its keys."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, path
    suffixes: dict[Any, str] = {dict: ".<name>", list: "[]"}
    suffix = suffixes.get(get_origin(annotation), "")
    for part in get_args(annotation):
        found = _model_in(part, path + suffix)
        if found is not None:
            return found
    return None


def _type(field: FieldInfo) -> str:
    bounds = _bounds(field.metadata)
    return _type_text(field.annotation) + (f", {bounds}" if bounds else "")


def _bounds(metadata: Iterable[Any]) -> str:
    """Return the limits of a number, as the page shows them."""
    found = [
        f"{sign} {getattr(part, key):g}"
        for part in metadata
        for key, sign in BOUNDS.items()
        if getattr(part, key, None) is not None
    ]
    return " and ".join(found)


def _type_text(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return f"{_type_text(parts[0])} {_bounds(annotation.__metadata__)}".rstrip()
    if origin is Literal:
        return " or ".join(f"`{json.dumps(value)}`" for value in parts)
    if origin in (Union, UnionType):
        return " or ".join(_type_text(part) for part in parts)
    if origin in (list, dict):
        return f"{'list' if origin is list else 'table'} of {_type_text(parts[-1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    return TYPES[annotation]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return ""
    return f"`{json.dumps(value)}`"


def hooks() -> str:
    """Return every hook with its arguments."""
    parts: list[str] = []
    for specs in (RegisterSpecs, ObserveSpecs):
        title = specs.__name__.removesuffix("Specs")
        parts += [f"## {title}", _prose(specs.__doc__)]
        for name, function in vars(specs).items():
            if name.startswith("agl_"):
                parts += [f"### `{name}({_parameters(function)})`", _prose(function.__doc__)]
    return "\n\n".join(parts)


def _parameters(function: Callable[..., Any]) -> str:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return ", ".join(f"{each.name}: {each.annotation}" for each in parameters)


def commands() -> str:
    """Return every command of the ``agl`` program."""
    state = CliState(_plugins=own_plugins())
    context = click.Context(cli, obj=state)
    parts = [
        _prose(AglGroup.__doc__).rpartition("\n\n")[2],
        table(("Option", "Meaning"), _rows(cli)),
        "## Options of several commands\n\nThe commands below name these where they take them.",
        table(("Option", "Meaning"), _shared_rows()),
    ]
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        parts += _command(name, command, state, level=2)
    return "\n\n".join(parts)


def _command(name: str, command: click.Command, state: CliState, *, level: int) -> Iterator[str]:
    """Yield a command with its options, then its subcommands."""
    yield f"{'#' * level} `{_usage(name, command)}`"
    yield _prose(command.help)
    yield from _options(command)
    if isinstance(command, click.Group):
        context = click.Context(command, obj=state)
        for each in command.list_commands(context):
            inner = command.get_command(context, each)
            assert inner is not None
            yield from _command(f"{name} {each}", inner, state, level=level + 1)


def _usage(name: str, command: click.Command) -> str:
    words = ["agl", name]
    for each in command.params:
        if isinstance(each, click.Argument):
            word = each.metavar or (each.name or "").upper()
            words.append((word if each.required else f"[{word}]") + "..." * (each.nargs == -1))
    return " ".join(words)


def _options(command: click.Command) -> Iterator[str]:
    """Yield a table of a command's own options, then the names of those that several take."""
    shared = _shared_rows()
    rows = _rows(command)
    own = [row for row in rows if row not in shared]
    if own:
        yield table(("Option", "Meaning"), own)
    names = [
        f"{name.partition(' ')[0].rstrip('`')}`" for name, help_ in rows if (name, help_) in shared
    ]
    if names:
        yield f"{'Also' if own else 'Options:'} {', '.join(names)}."


def _shared_rows() -> list[Row]:
    def command() -> None: ...

    for option in (debug_option, json_option, plugin_option, set_option):
        option(command)
    return _rows(click.command()(command))


def _rows(command: click.Command) -> list[Row]:
    rows: list[Row] = []
    for each in command.params:
        if isinstance(each, click.Option) and not each.hidden:
            value = "" if each.is_flag else f" {each.metavar or _metavar(each.type)}"
            names = ", ".join(f"`{name}{value}`" for name in each.opts)
            rows.append((names, each.help or _BUILT_IN_HELP.get(each.name or "", "")))
    return rows


def _metavar(kind: Any) -> str:
    return "N" if kind.name.startswith("integer") else kind.name.upper()


_BUILT_IN_HELP = {"version": "Show the version and stop."}


def error_tree() -> str:
    """Return the tree from the docstring of ``errors.py``."""
    drawn = (errors.__doc__ or "").partition("::\n\n")[2].partition("\n\n")[0]
    return f"```\n{dedent(drawn)}\n```"


def verl_memory() -> str:
    """Return the GPU memory that some models need with the engine ``verl``."""
    made: str = import_module("agl_verl.memory").table()
    return made


def events() -> str:
    """Return the options of ``[events]``."""
    return _section("events")


def encryption() -> str:
    """Return the options of ``[encryption]``."""
    return _section("encryption")


def storage() -> str:
    """Return the options of ``[storage]``."""
    return _section("storage")


def privacy() -> str:
    """Return the options of ``[privacy]``."""
    return _section("privacy")


def _section(name: str) -> str:
    plugins = own_plugins()
    kind: Kind = "layers" if name in plugins.registry("layers") else "observers"
    model = plugins.registry(kind).options_model(name)
    assert model is not None
    return "\n\n".join(_sections(model, name, titled=False))


def limits() -> str:
    """Return the options of ``[limits]``."""
    model = own_plugins().registry("admissions").options_model("limits")
    assert model is not None
    return "\n\n".join(_sections(model, "limits"))


def event_data() -> str:
    """Return the data of each channel's events, with the docstrings of their fields."""
    facts = import_module("agl_events._facts")
    parts: list[str] = []
    for channel, kind in facts.SCHEMAS.items():
        body = ast.parse(inspect.getsource(kind)).body[0]
        assert isinstance(body, ast.ClassDef)
        rows: list[Row] = []
        for field, after in zip(body.body, [*body.body[1:], None], strict=True):
            if not isinstance(field, ast.AnnAssign):
                continue
            text = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                text = str(after.value.value)
            rows.append((f"`{ast.unparse(field.target)}`", _fact(field.annotation), _prose(text)))
        title = f"### `{channel}`\n\n{_prose(kind.__doc__)}"
        parts += [title, table(("Key", "Type", "Meaning"), rows)]
    return "\n\n".join(parts)


def _fact(annotation: ast.expr) -> str:
    words = {"str": "text", "int": "integer", "float": "number", "None": "null", "Any": "anything"}
    words |= {"Content": "*content*", "ScoreFacts": "`mean`, `low`, `high`, `tasks`"}
    match annotation:
        case ast.BinOp(left=left, right=right):
            return f"{_fact(left)} or {_fact(right)}"
        case ast.Subscript(value=ast.Name(id=name), slice=inner):
            last = inner.elts[-1] if isinstance(inner, ast.Tuple) else inner
            return f"{'list' if name == 'list' else 'table'} of {_fact(last)}"
        case _:
            return words.get(ast.unparse(annotation), ast.unparse(annotation))


PARTS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "config": config,
    "errors": error_tree,
    "event_data": event_data,
    "events": events,
    "encryption": encryption,
    "privacy": privacy,
    "extras": extras,
    "hooks": hooks,
    "limits": limits,
    "optimizers": optimizers,
    "options": options,
    "plugins": plugins,
    "storage": storage,
    "verl_memory": verl_memory,
}


def pages() -> list[Path]:
    """Return the pages that may have generated parts."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def fill(text: str) -> str:
    """Return a page's text with its generated parts updated."""
    return PART.sub(lambda part: f"{part[1]}{PARTS[part[2]]()}\n{part[3]}", text)


def main(arguments: list[str]) -> int:
    """Write or check every page; return 1 if a checked page is stale."""
    stale: list[str] = []
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = fill(before)
        if after != before:
            stale.append(page.relative_to(ROOT).as_posix())
            if "--check" not in arguments:
                page.write_text(after, encoding="utf-8", newline="\n")
    if "--check" in arguments and stale:
        sys.stderr.write(f"Stale: {', '.join(stale)}; run python docs/generate.py\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
