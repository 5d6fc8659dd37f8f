"""Rules that no linter knows."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHIPPED = ("agl_core", "integrations", "plugins", "trainers", "examples")
FRAMEWORKS = re.compile(
    r"agent_?framework|agentscope|autogen|crew_?ai|dspy|lang_?chain|lang_?graph|llama_?index|"
    r"openai[-_ ]agents|pydantic[-_ ]ai|smolagents|\btrl\b|\bverl\b",
    re.IGNORECASE,
)
SERVERS = re.compile(r"\bvllm\b|sglang|llama\.cpp|text-generation-inference", re.IGNORECASE)
MOST_LINES_OF_A_FILE = 500
MOST_LINES_OF_A_FUNCTION = 60


def files(*folders):
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert found
    return found


@cache
def text(path):
    return path.read_text(encoding="utf-8")


@cache
def all_nodes(path):
    return list(ast.walk(ast.parse(text(path))))


def tokens(path):
    return tokenize.generate_tokens(io.StringIO(text(path)).readline)


def nodes(path, *kinds):
    return [node for node in all_nodes(path) if isinstance(node, kinds)]


def lines_without_docstring(function):
    length = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str):
        length -= first.end_lineno - first.lineno + 1
    return length


def test_files_and_functions_stay_small():
    found = [
        path for path in files(*SHIPPED) if len(text(path).splitlines()) > MOST_LINES_OF_A_FILE
    ]
    found += [
        (path, function.name)
        for path in files(*SHIPPED)
        for function in nodes(path, ast.FunctionDef, ast.AsyncFunctionDef)
        if lines_without_docstring(function) > MOST_LINES_OF_A_FUNCTION
    ]
    assert found == []


def test_errors_are_caught_by_name_or_with_a_reason():
    found = []
    for path in files(*SHIPPED):
        lines = text(path).splitlines()
        for handler in nodes(path, ast.ExceptHandler):
            line = lines[handler.lineno - 1]
            broad = isinstance(handler.type, ast.Name) and handler.type.id in (
                "BaseException",
                "Exception",
            )
            raises = any(isinstance(node, ast.Raise) for node in ast.walk(handler))
            if handler.type is None or (broad and not raises and "#" not in line):
                found.append((path, handler.lineno, line))
    assert found == []


def test_only_the_command_line_prints():
    found = [
        (path, call.lineno)
        for path in files("agl_core", "integrations", "plugins", "trainers")
        if "cli" not in path.relative_to(ROOT).parts
        for call in nodes(path, ast.Call)
        if getattr(call.func, "id", "") == "print"
    ]
    assert found == []


def test_core_spells_no_framework_and_no_inference_server():
    assert [
        (path, name)
        for path in files("agl_core")
        for names in (FRAMEWORKS, SERVERS)
        for name in names.findall(text(path))
    ] == []


def test_names_say_what_a_thing_is():
    endings = ("Helper", "Manager", "Util", "Utils")
    found = [
        path for path in files(*SHIPPED) if re.search(r"utils?|helpers?|misc|common", path.stem)
    ]
    found += [
        (path, node.name)
        for path in files(*SHIPPED)
        for node in nodes(path, ast.ClassDef)
        if node.name.endswith(endings) and node.name != "PluginManager"
    ]
    assert found == []


def test_nothing_is_left_for_later():
    later = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    assert [(path, word) for path in files(*SHIPPED) for word in later.findall(text(path))] == []


def test_one_module_decides_what_becomes_of_lone_surrogates():
    """Stores keep them by an escape of their encoding; contract suites spell some as data."""
    words = re.compile(r"surrogate(?:pass|escape)|backslashreplace|\\ud[89a-f]", re.IGNORECASE)
    allowed = {ROOT / "agl_core" / name for name in ("text.py", "store/_codec.py")}
    allowed.add(ROOT / "plugins/agl_stores/_keys.py")
    found = [
        (path, word)
        for path in files("agl_core", "integrations", "plugins", "trainers")
        if path not in allowed and "agl_testing" not in path.parts
        for word in words.findall(text(path))
    ]
    assert found == []


def test_no_list_names_the_frameworks():
    """Lists are derived from folders, so that a new framework touches no file but its own.

    Left out are the framework's own tests.
    """
    names = {folder.name.removeprefix("agl_") for folder in (ROOT / "integrations").glob("agl_*")}
    assert len(names) > 1
    found = []
    for path in files("agl_core", "plugins", "tests", "tools"):
        if path.is_relative_to(ROOT / "tests" / "integrations"):
            continue
        for node in nodes(path, ast.List, ast.Tuple, ast.Set, ast.Dict):
            items = node.keys if isinstance(node, ast.Dict) else node.elts
            named = names & {item.value for item in items if isinstance(item, ast.Constant)}
            if len(named) > 1:
                found.append((path, node.lineno, named))
    assert found == []


def late_names(path):
    """Names that a package's face imports on first use; see `agl_core.faces`."""
    if "late(__name__)" in text(path):
        yield from re.findall(r"^    from \S+ import (\w+) as \1$", text(path), re.MULTILINE)
    if any(function.name == "__getattr__" for function in nodes(path, ast.FunctionDef)):
        for assigned in nodes(path, ast.Assign):
            if any(getattr(target, "id", "") == "__all__" for target in assigned.targets):
                yield from ast.literal_eval(assigned.value)


def test_a_face_has_no_name_of_a_module_that_it_imports_late():
    """`from package import name` gives the module instead, once it has been imported."""
    faces = [path for path in files(*SHIPPED) if path.name == "__init__.py"]
    names = [(path, name) for path in faces for name in late_names(path)]
    assert names
    assert [(path, name) for path, name in names if (path.parent / f"{name}.py").exists()] == []


def test_the_text_of_an_f_string_is_prose(tmp_path):
    file = tmp_path / "page.py"
    file.write_text('said = f"nobody {1 + 1} goes on"\n', encoding="utf-8")
    said = " ".join(words for _, words in prose(file))
    assert "nobody" in said
    assert "goes on" in said


PLAIN = {
    r"tells?|telling|told": "say, report, state, distinguish",
    r"nobody|somebody|whoever": "the part of the program that is meant",
    r"go(?:es)? on|going on|went on|gone on": "continue",
    r"anew": "again",
    r"awkward": "what is wrong with it",
    r"bears?": "has",
    r"hears?|heard|unheard": "get, receive",
    r"lets? go of": "release",
    r"learns? of": "get, receive",
    r"at the door": "at the gateway",
    r"mend(?:s|ed|ing)?": "fix",
    r"ledger|lifeline|aftermath": "the thing's own name",
}
"""Words that need decoding, and what to write instead: docs/glossary.md has the terms."""
RENAMED = {
    "Orders|orders|_orders": "DesiredState, requests",
    "News": "Status",
    "Ahead": "Prefetcher",
    "StoreShell": "BaseStore",
    r"(?:Legible|Seeing)[A-Z]\w*": "detokenizing, Vision...",
    "Pace": "BeforeSend, throttle",
    "Rooms?|rooms": "components",
    "Scoped|Pieces|Opening": "SpanScope",
    "_?beside": "run_alongside",
    "_?in_short": "summary",
    "_?door": "authorise",
    "_?excuse": "send_error",
}
"""Names of code, as they are spelled, and the name to use."""
DATA = ("examples/agl_demo/world.py",)
"""Sentences that models read and write."""


FSTRING_MIDDLE = getattr(tokenize, "FSTRING_MIDDLE", None)
"""The text of an f-string, which is one token of a string before Python 3.12."""


def prose(path):
    """Number and text of what a file says: comments, strings and names, or a page without code."""
    if path.suffix == ".md":
        page = re.sub(
            r"^```.*?^```",
            lambda code: "\n" * code[0].count("\n"),
            text(path),
            flags=re.MULTILINE | re.DOTALL,
        )
        yield from enumerate(re.sub(r"`[^`\n]*`", "", page).splitlines(), 1)
        return
    for token in tokens(path):
        if token.type in (tokenize.COMMENT, tokenize.STRING, FSTRING_MIDDLE):
            yield from enumerate(token.string.splitlines(), token.start[0])
        elif token.type == tokenize.NAME and token.string != "tell":  # of files
            words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", token.string)
            yield token.start[0], words.replace("_", " ")


def test_no_name_comes_back_that_was_replaced():
    replaced = re.compile("|".join(rf"(\b(?:{names})\b)" for names in RENAMED))
    better = list(RENAMED.values())
    found = [
        f"{path.relative_to(ROOT)}:{token.start[0]}: {token.string!r}: write {better[old.lastindex - 1]}"
        for path in files(*SHIPPED, "tools", "tests")
        if replaced.search(text(path))
        for token in tokens(path)
        if token.type == tokenize.NAME and (old := replaced.fullmatch(token.string))
    ]
    found += [path for path in files(*SHIPPED, "tests") if replaced.fullmatch(path.stem)]
    assert found == []


def test_the_language_is_plain():
    plain = {re.compile(rf"\b(?:{words})\b", re.IGNORECASE): say for words, say in PLAIN.items()}
    pages = [
        path for folder in (*SHIPPED, "docs") for path in sorted((ROOT / folder).rglob("*.md"))
    ]
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word!r}: write {say}"
        for path in [
            *files(*SHIPPED, "tools", "tests/plugin_package"),
            *pages,
            ROOT / "README.md",
            ROOT / "CONTRIBUTING.md",
        ]
        if path.relative_to(ROOT).as_posix() not in DATA
        for line, said in prose(path)
        for pattern, say in plain.items()
        for word in pattern.findall(said)
    ]
    assert found == []
