import pytest

from agl_core.plugins import requirements
from agl_core.plugins.requirements import Requirement, parse_requirement


@pytest.mark.parametrize(
    ("line", "text", "extra", "conditional"),
    [
        ("torch", "torch", None, False),
        ("torch>=2.5; extra == 'torch'", "torch>=2.5", "torch", False),
        ('Foo.Bar[x,y] (<2,>=1) ; extra == "a-b"', "Foo.Bar>=1,<2", "a-b", False),
        ("tomli>=2; python_version < '3.11'", "tomli>=2", None, True),
        ("x~=1.4 ; (python_version >= '3.9') and extra == 'e'", "x~=1.4", "e", True),
    ],
)
def test_requirement_lines_of_installed_metadata(line, text, extra, conditional):
    parsed = parse_requirement(line)

    assert (str(parsed), parsed.for_extra, parsed.conditional) == (text, extra, conditional)


def test_no_requirement_raises():
    with pytest.raises(ValueError, match="Not a requirement"):
        parse_requirement(">=3")


@pytest.mark.parametrize(
    ("version", "clauses", "met"),
    [
        ("2.10.0", [">=2.5"], True),
        ("2.4.9", [">=2.5"], False),
        ("2.0", [">=1.0", "<2"], False),
        ("1.99", [">=1.0", "<2"], True),
        ("2.13.0+cpu", ["==2.13.0"], True),
        ("2.0.0", ["==2"], True),
        ("1.0", ["!=1.0"], False),
        ("1.5", [">1.5"], False),
        ("1.5", ["<=1.5"], True),
        ("1.9", ["~=1.4"], True),
        ("2.0", ["~=1.4"], False),
        ("1.2", ["==1.*"], True),
        ("3.0rc1", [">=3.0"], True),
        ("weird", [">=1"], False),
    ],
)
def test_versions_are_compared_as_numbers(monkeypatch, version, clauses, met):
    monkeypatch.setattr(requirements.metadata, "version", lambda name: version)

    assert Requirement(name="x", clauses=tuple(clauses)).met is met


def test_an_unknown_distribution_requires_nothing_known():
    assert requirements.requirements("no-such-distribution", "extra") == []
