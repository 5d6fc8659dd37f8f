"""Run every registered check of a framework's pitfalls, isolated from the other checks."""

from __future__ import annotations

from collections.abc import Sequence

from agl_core.config import RunConfig
from agl_core.errors import MissingExtraError, PluginError
from agl_core.interfaces import AttemptRecord, Check
from agl_core.plugins import PluginManager
from agl_core.types import Finding


def ask_checks(
    plugins: PluginManager, records: Sequence[AttemptRecord], config: RunConfig
) -> list[Finding]:
    """Return the findings of all checks. A check that fails becomes a finding itself."""
    registry = plugins.registry("checks")
    found: list[Finding] = []
    for name in registry.names():
        try:
            check: Check = registry.resolve(name)
        except MissingExtraError:
            continue  # the framework is not installed
        except PluginError as error:
            found.append(_broken(name, str(error)))
            continue
        try:
            found += _ask(check, records, config)
        except Exception as error:  # noqa: BLE001 - isolation: the others are asked
            plugin = registry.get(name).plugin
            found.append(
                _broken(
                    name,
                    f"Plugin {plugin!r} raised in check {name!r}: {type(error).__name__}: {error}",
                )
            )
    return found


def _ask(check: Check, records: Sequence[AttemptRecord], config: RunConfig) -> list[Finding]:
    findings = list(check(list(records), config))
    for finding in findings:
        if not isinstance(finding, Finding):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"it gave {finding!r}: a check gives agl_core.types.Finding")
    return findings


def _broken(name: str, message: str) -> Finding:
    return Finding(
        check=name,
        severity="warning",
        measured=f"{message}.",
        fix="Fix the check, or leave its plugin out with AGL_DISABLE_PLUGINS.",
    )
