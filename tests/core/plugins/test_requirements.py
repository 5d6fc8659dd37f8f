import pytest
from packaging.requirements import Requirement

from agl_core.plugins import requirements
from agl_core.plugins.requirements import is_met, requirement_text


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("torch", "torch"),
        ("torch>=2.5; extra == 'torch'", "torch>=2.5"),
        ('Foo.Bar[x,y] (<2,>=1) ; extra == "a-b"', "Foo.Bar>=1,<2"),
        ("x!=1.5,~=1.4", "x~=1.4,!=1.5"),
    ],
)
def test_requirements_are_told_as_pip_takes_them(line, text):
    assert requirement_text(Requirement(line)) == text


@pytest.mark.parametrize(
    ("extra", "names"),
    [
        (None, ["pluggy"]),
        ("e-x", ["Foo.Bar", "here"]),
        ("all", ["late", "Foo.Bar", "here"]),
        ("absent", []),
    ],
)
def test_an_extra_brings_what_its_markers_say_on_this_machine(shelf, extra, names):
    shelf.install(
        "acme-agents",
        requires=[
            "pluggy",
            "old; python_version < '3'",
            "Foo.Bar[x] (<2,>=1) ; extra == 'E_x'",
            "here; (python_version >= '3.9') and extra == 'e-x'",
            "wings; sys_platform == 'amiga' and extra == 'e-x'",
            "Acme_Agents[e-x,all]; extra == 'all'",
            "late; extra == 'all'",
        ],
    )

    found = requirements.requirements("acme-agents", extra)

    assert [requirement.name for requirement in found] == names


@pytest.mark.parametrize(
    ("version", "clauses", "met"),
    [
        ("2.10.0", ">=2.5", True),
        ("2.4.9", ">=2.5", False),
        ("2.0", ">=1.0,<2", False),
        ("1.99", ">=1.0,<2", True),
        ("2.13.0+cpu", "==2.13.0", True),
        ("2.0.0", "==2", True),
        ("1.0", "!=1.0", False),
        ("1.5", ">1.5", False),
        ("1.5", "<=1.5", True),
        ("1.9", "~=1.4", True),
        ("2.0", "~=1.4", False),
        ("1.4.9", "~=1.4.2", True),
        ("1.5", "~=1.4.2", False),
        ("1.2", "==1.*", True),
        ("2.2", "==1.*", False),
        ("1.2", "!=1.*", False),
        ("3.0rc1", ">=3.0", False),
        ("3.1rc1", ">=3.0", True),
        ("weird", ">=1", False),
    ],
)
def test_versions_are_compared_as_pip_does(monkeypatch, version, clauses, met):
    monkeypatch.setattr(requirements.metadata, "version", lambda name: version)

    assert is_met(Requirement(f"x{clauses}")) is met


def test_an_unknown_distribution_requires_nothing_known():
    assert requirements.requirements("no-such-distribution", "extra") == []
