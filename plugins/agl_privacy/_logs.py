"""Masking of log records as they are made, for all handlers."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from agl_privacy._masker import Masker
    from agl_privacy._options import MaskOptions

VARIABLE: Final = "AGL_MASK_LOGS"
"""``off``, or the kinds to mask, separated by commas; all kinds without it."""
_OFF: Final = ("off", "0", "false", "no", "none")
_ON: Final = ("", "on", "1", "true", "yes", "all")
_OWN: Final = "agl_"
"""Beginning of the names of agl-core's loggers, and their rule."""

_INSIDE: Final = ContextVar("agl_privacy_inside", default=False)
"""Whether a record is being masked: a recogniser, or a library that it uses, may log."""

Rule = Callable[[], "Masker | None"]
"""Returns what masks the records of some loggers, or None where they stay as they are."""


class MaskingFactory:
    """A factory of log records that masks those of chosen loggers.

    A filter would see only the records of one logger, and none of its children's. Handlers of other
    loggers get what they got before.
    """

    def __init__(self, inner: Callable[..., logging.LogRecord]) -> None:
        """Mask the records of agl-core, made by the factory that was there before."""
        self._inner = inner
        self.rules: dict[str, Rule] = {_OWN: lambda: self._default}

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._inner(name, *args, **kwargs)
        rule = self._rule(name)
        if rule is None:
            return record
        if _INSIDE.get():
            record.msg, record.args = "(a record from inside a recogniser)", None
            record.exc_info = record.exc_text = record.stack_info = None
            return record
        inside = _INSIDE.set(True)
        try:
            _mask(record, rule)
        finally:
            _INSIDE.reset(inside)
        return record

    def _rule(self, name: str) -> Rule | None:
        at = name
        while at:
            if at in self.rules:
                return self.rules[at]
            at = at.rpartition(".")[0]
        return self.rules.get(_OWN if name.startswith(_OWN) else "")

    @cached_property
    def _default(self) -> Masker | None:
        """Mask as the variable says; with an unknown value, all kinds."""
        from agl_privacy._masker import Masker  # noqa: PLC0415 - pydantic, with the first record
        from agl_privacy._options import KINDS, MaskOptions  # noqa: PLC0415

        given = os.environ.get(VARIABLE, "").strip().lower()
        if given in _OFF:
            return None
        kinds = {each.strip() for each in given.split(",")}
        if given in _ON or not kinds <= {*KINDS}:
            return Masker()
        return Masker(MaskOptions().model_copy(update={kind: kind in kinds for kind in KINDS}))


def _mask(record: logging.LogRecord, rule: Rule) -> None:
    """Mask message, arguments and exception; a record without personal data stays as it is."""
    try:
        masker = rule()
        if masker is None:
            return
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - wrong arguments: the handler would print them as they are
            message = f"{record.msg} {record.args!r}"
        masked = masker.text(message)
        if masked != message or masker.holds(record.args):
            record.msg, record.args = masked, None
        if record.exc_info and record.exc_info[0] is not None:
            trace = logging.Formatter().formatException(record.exc_info)
            masked = masker.text(trace)
            if masked != trace:
                record.exc_text, record.exc_info = masked, None
        if record.stack_info:
            record.stack_info = masker.text(record.stack_info)
    except Exception as error:  # noqa: BLE001 - telemetry never raises into the program
        record.msg, record.args = f"(a record that cannot be masked: {type(error).__name__})", None
        record.exc_info = record.exc_text = record.stack_info = None


def masking() -> MaskingFactory:
    """Return the factory of this process, after installing it."""
    factory = logging.getLogRecordFactory()
    if not isinstance(factory, MaskingFactory):
        factory = MaskingFactory(factory)
        logging.setLogRecordFactory(factory)
    return factory


def mask_logs(*loggers: str, enabled: bool = True, options: MaskOptions | None = None) -> None:
    """Mask the logs of some loggers and of those below them, for all handlers, from now on.

    Args:
        loggers: Names of loggers, ``""`` for all that have no setting; none: those of agl-core and
            its plugins, which are masked by default.
        enabled: False leaves their records as they are.
        options: What is masked; everything by default.

    Raises:
        ConfigError, MissingExtraError: an option is wrong; see `Masker`.
    """
    from agl_privacy._masker import Masker  # noqa: PLC0415
    from agl_privacy._options import MaskOptions  # noqa: PLC0415

    masker = Masker.shared(options or MaskOptions()) if enabled else None
    for name in loggers or (_OWN,):
        masking().rules[name] = lambda: masker


@contextmanager
def masked_logs(masker: Masker | None) -> Generator[None]:
    """Mask the logs of agl-core by the given masker inside; None leaves them as they are."""
    factory = masking()
    before, factory.rules[_OWN] = factory.rules[_OWN], lambda: masker
    try:
        yield
    finally:
        factory.rules[_OWN] = before
