"""No framework is changed beyond what docs/frameworks.md lists, by reading all code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.touch_points import literals, touch_points

ROOT = Path(__file__).parents[1]
FOLDERS = ("agl_core", "integrations", "plugins", "trainers", "examples")
SPELLED = {
    # What a file names by variables: the functions, as the table names them.
    "integrations/agl_agentscope/_v1/attached.py": {
        "ReActAgent.[name]": ("ReActAgent", "_OTHERS"),
        "owner.[name]": (),  # the one call of Patch, by those that are listed
    },
    "integrations/agl_autogen/_integration.py": {"kind.[name]": ("kind", "_TURNS")},
    "integrations/agl_crewai/_entries.py": {
        "owner.[name]": ("", "_ENTRIES"),
        "owner.[_CALL]": ("module", "_CALL"),
    },
    "integrations/agl_crewai/_overflow.py": {"module.[_NAME]": ("module", "_NAME")},
}
OTHER = {
    # No framework's: this program's own objects, and copies that nobody else has.
    "agl_core/cli/group.py": {"sys.argv"},
    "agl_core/config/references.py": {"sys.modules"},  # of the user's file, while it is imported
    "agl_core/faces.py": {"module.[name]"},
    "agl_core/tracing/_wrapping.py": {"self._owner.[self._name]"},  # Patch itself
    "integrations/agl_agentscope/_v1/thinking.py": {"self.model.[name]"},  # passes on to its model
    "integrations/agl_agentscope/_v2/attached.py": {"agent.[name]"},  # takes the middleware out
    "integrations/agl_agentscope/_v2/calls.py": {"copied.[_REQUEST]"},
    "integrations/agl_openai_agents/_provider.py": {"self._owner.[self._name]"},  # Shadow itself
    # Settings of programs that are run by themselves.
    "examples/06_crewai/train.py": {"os.environ", "event_listener.formatter.verbose"},
    "examples/11_prompts/crewai_train.py": {"os.environ", "event_listener.formatter.verbose"},
    "examples/agl_demo/conversion.py": {"model.[mark]"},
}
LIBRARY = {"owner.urlopen": "HTTPConnectionPool", "owner.open": "OpenerDirector"} | {
    "owner._request": "ClientSession",
    "owner.connect": "ClientProtocol",
    "owner.process_response": "ClientProtocol",
}


def found():
    """Touch points by package, as the table spells them, and what is in no table."""
    listed, rest = {}, {}
    for file in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        path = file.relative_to(ROOT).as_posix()
        for point in touch_points(file):
            if point in OTHER.get(path, ()):
                continue
            spelled = SPELLED.get(path, {}).get(point, None)
            package = path.split("/")[0 if path.startswith("agl_core") else 1]
            if path.startswith("examples"):
                rest.setdefault(path, []).append(point)
            elif spelled is None:
                name = point.replace("owner.", f"{LIBRARY.get(point, 'owner')}.")
                listed.setdefault(package, set()).add(name)
            elif spelled:
                owner, table = spelled
                names = {f"{owner}.{name}".strip(".") for name in literals(file, table)}
                listed.setdefault(package, set()).update(
                    name.replace("_LITE_AGENT", "LiteAgent") for name in names
                )
    return listed, rest


def documented():
    page = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
    section = page.partition("## What is wrapped")[2].partition("\n## ")[0]
    rows = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 2 and cells[0].startswith("`"):
            for package in re.findall(r"`(agl_\w+)`", cells[0]):
                rows.setdefault(package, set()).update(re.findall(r"`([^`]+)`", cells[1]))
    return rows


def test_the_table_lists_what_is_wrapped_and_nothing_else():
    listed, rest = found()
    assert listed == {package: names for package, names in documented().items() if names}
    assert rest == {}, "an example changes a framework"


def test_no_exception_is_out_of_date():
    for path, points in [*OTHER.items(), *SPELLED.items()]:
        assert set(points) <= set(touch_points(ROOT / path)), path


@pytest.mark.parametrize(
    ("code", "points"),
    [
        ("import lib\nlib.Agent.run = print", ["lib.Agent.run"]),
        ("from lib import Agent\nAgent.run = print", ["Agent.run"]),
        ("from lib import Agent as A\nkind = A.Inner\nkind.run = print", ["kind.run"]),
        ("from lib import Agent\nkind: type = Agent\ndel kind.run", ["kind.run"]),
        ("from lib import Agent\nif k := Agent:\n    k.n += 1", ["k.n"]),
        ("from lib import A\n(x, A.run) = 1, 2", ["A.run"]),
        ("from lib import A\nA.__dict__['run'] = 1", ["A.__dict__"]),
        ("import sys\nsys.modules['lib'] = None", ["sys.modules"]),
        ("def f(agent):\n    setattr(agent, 'run', 1)", ["agent.run"]),
        ("def f(agent, name):\n    delattr(agent, name)", ["agent.[name]"]),
        ("import agl_core.tracing as t\nt.Patch(lib, A, 'run', w)", ["A.run"]),
        ("from unittest.mock import patch", ["import unittest.mock.patch"]),
        ("import wrapt", ["import wrapt"]),
        ("from agl_core import X\nX.y = 1", []),
        ("class A:\n    def f(self):\n        self.x = 1\n        setattr(self, 'y', 2)", []),
        ("from lib import Model\nmodel = Model()\nmodel.config.use_cache = False", []),
    ],
)
def test_what_changes_others_is_found(tmp_path, code, points):
    file = tmp_path / "package" / "module.py"
    file.parent.mkdir()
    file.write_text(code)
    assert touch_points(file) == points
