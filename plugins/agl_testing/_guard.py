"""The base class that keeps contract suites complete: tests are not overridden without a reason."""

from __future__ import annotations

import inspect
from typing import Any


class ContractSuite:
    """Base of the contract suites.

    A subclass supplies fixtures. It may override a test only with one that is marked
    ``pytest.mark.xfail(reason="...")``, so that a rule which the implementation breaks is reported.
    This also holds for a test inherited from another base class.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, rule in sorted(_rules(cls).items()):
            found = inspect.getattr_static(cls, name)
            if found is not rule and not _expected_to_fail(found):
                raise TypeError(
                    f"{cls.__name__}.{name} overrides a contract test: delete it, or mark it "
                    f"pytest.mark.xfail(reason=...) and say what is not fulfilled"
                )


def _rules(cls: type) -> dict[str, object]:
    """Return the tests of the suites that `cls` inherits, each from the most basic suite."""
    rules: dict[str, object] = {}
    for base in reversed(cls.__mro__[1:]):
        if issubclass(base, ContractSuite):
            for name, test in vars(base).items():
                if name.startswith("test_"):
                    rules.setdefault(name, test)
    return rules


def _expected_to_fail(test: object) -> bool:
    marks = getattr(test, "pytestmark", [])
    return any(mark.name == "xfail" and mark.kwargs.get("reason") for mark in marks)
