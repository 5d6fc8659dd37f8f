"""What keeps a contract whole: nothing in it is overridden in silence."""

from __future__ import annotations

from typing import Any


class ContractSuite:
    """Base of the contract suites.

    A subclass supplies fixtures. It may replace a test only by one that is marked
    ``pytest.mark.xfail(reason="...")``, so that what an implementation does not fulfil is said.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        inherited = {
            name for base in cls.__mro__[1:] for name in vars(base) if name.startswith("test_")
        }
        for name in sorted(inherited & vars(cls).keys()):
            if not _expected_to_fail(vars(cls)[name]):
                raise TypeError(
                    f"{cls.__name__}.{name} overrides a contract test: delete it, or mark it "
                    f"pytest.mark.xfail(reason=...) and say what is not fulfilled"
                )


def _expected_to_fail(test: object) -> bool:
    marks = getattr(test, "pytestmark", [])
    return any(mark.name == "xfail" and mark.kwargs.get("reason") for mark in marks)
