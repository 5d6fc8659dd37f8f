"""What ``import agl_core`` and a base install cost."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

MOST_DISTRIBUTIONS = 30
HEAVY = {
    "aiohttp",
    "asyncio",
    "click",
    "httpx",
    "httpx2",
    "msgspec",
    "numpy",
    "pluggy",
    "pydantic",
    "rich",
    "ruamel",
    "sqlite3",
    "ssl",
    "torch",
    "transformers",
    "uvicorn",
}


def modules_after(statement):
    program = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-c", program]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return set(json.loads(output.stdout))


def test_import_brings_nothing_heavy():
    before = modules_after("pass")
    assert (modules_after("import agl_core") - before) & HEAVY == set()


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("from agl_core import Task, Span", {"aiohttp", "pydantic", "uvicorn", "rich", "sqlite3"}),
        ("import agl_core.tracing", {"aiohttp", "httpx", "pydantic", "uvicorn", "rich", "click"}),
        ("import agl_core.store._memory", {"aiohttp", "pydantic", "uvicorn", "sqlite3"}),
        ("import agl_core.interfaces", {"aiohttp", "pydantic", "uvicorn", "rich"}),
    ],
)
def test_rooms_bring_what_they_need_only(statement, absent):
    before = modules_after("pass")
    assert (modules_after(statement) - before) & absent == set()


def test_unknown_name_is_an_attribute_error():
    import agl_core

    with pytest.raises(AttributeError, match="nothing"):
        _ = agl_core.nothing


def closure(name):
    """Names of the distributions that an installation of `name` without extras brings."""
    found = {}
    wanted = [(canonicalize_name(name), "")]
    while wanted:
        current, extra = wanted.pop()
        if extra in found.setdefault(current, set()):
            continue
        found[current].add(extra)
        try:
            needs = requires(current) or []
        except PackageNotFoundError:
            needs = []
        for need in map(Requirement, needs):
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                child = canonicalize_name(need.name)
                wanted += [(child, "")] + [(child, one) for one in need.extras]
    return set(found)


def test_base_install_stays_small():
    brought = closure("agl-core")
    assert {"aiohttp", "msgspec", "multidict", "pydantic-core"} <= brought
    assert len(brought) <= MOST_DISTRIBUTIONS, sorted(brought)
