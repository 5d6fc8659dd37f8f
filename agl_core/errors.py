"""Every error agl-core raises, in one tree.

::

    AglError
    ├── ConfigError                 a value, key or name the user gave
    ├── PluginError                 a plugin misbehaved
    │   ├── MissingExtraError       its framework is not installed (also an ImportError)
    │   └── PluginConflictError     two plugins claim one name
    ├── StoreError                  the store refused or could not keep a record
    │   ├── StaleAttemptError       a write by an attempt that lost its fence
    │   └── LeadHeldError           another trainer leads the store
    ├── CaptureError                recorded data is not exactly true
    │   ├── MissingTokensError      a trained call without token ids
    │   │   └── EmptyAnswerError    because the model ended it before the first token
    │   └── TokenMismatchError      token ids that contradict each other or the text
    ├── RolloutError                one attempt failed: kept as data, never crashes a run
    │   ├── AgentError              the agent raised
    │   ├── RewardError             the reward raised or is unusable
    │   ├── EngineError             the model backend failed
    │   ├── DeadlineError           the attempt ran out of time
    │   └── ContextOverflowError    the prompt does not fit the model's context
    └── TrainingError               the update cannot be computed

A message states what failed, the value, and the fix.
"""

from __future__ import annotations

import json
import time
from importlib import metadata
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

_LAST_MOMENT = 253_402_300_799
"""The end of the year 9999: no later time has a date."""


def pip_line(extra: str) -> str:
    """The command that adds an extra of agl-core, from where this agl-core was installed.

    That is a directory, an archive, a commit, or else the package index (PEP 610).
    """
    wanted = f"agl-core[{extra}]"
    try:
        origin = metadata.distribution("agl-core").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        origin = None
    if origin is None:
        return f"pip install '{wanted}'"
    recorded: dict[str, Any] = json.loads(origin)
    url: str = recorded["url"]
    if "vcs_info" in recorded:
        vcs = recorded["vcs_info"]
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
        if "subdirectory" in recorded:
            url += f"#subdirectory={recorded['subdirectory']}"
    if "dir_info" not in recorded:
        return f"pip install '{wanted} @ {url}'"
    editable = "-e " if recorded["dir_info"].get("editable") else ""
    return f"pip install {editable}'{url2pathname(urlsplit(url).path)}[{extra}]'"


class AglError(Exception):
    """Base of every error raised by agl-core."""


class ConfigError(AglError):
    """A configuration value, key or name is wrong."""


class PluginError(AglError):
    """A plugin could not be loaded or raised in a hook."""


class MissingExtraError(PluginError, ImportError):
    """A plugin was chosen whose framework is not installed."""

    def __init__(self, plugin: str, *, needs: str, extra: str | None = None) -> None:
        """Build the one message that names the pip line.

        Args:
            plugin: Name under which the target was registered.
            needs: The requirement that is missing, such as ``"torch>=2.5"``.
            extra: The extra that brings it; the plugin's own distribution when None.
        """
        pip = pip_line(extra) if extra else f"pip install '{needs}'"
        super().__init__(f"Plugin {plugin!r} needs {needs}: {pip}")
        self.plugin = plugin
        self.needs = needs
        self.extra = extra


class PluginConflictError(PluginError):
    """Two plugins registered the same name for the same kind."""


class StoreError(AglError):
    """The store refused an operation or could not keep a record."""


class StaleAttemptError(StoreError):
    """An attempt wrote after it had ended or had been replaced."""


class LeadHeldError(StoreError):
    """Another trainer leads the store."""

    def __init__(self, holder: str, until: float) -> None:
        """Build the one message that names who leads.

        Args:
            holder: The instance that leads.
            until: Unix seconds; the lease may be renewed after that.
        """
        lapses = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(min(until, _LAST_MOMENT)))
        super().__init__(
            f"Trainer {holder!r} leads this store until {lapses}: a store has one trainer at a "
            f"time, so end that trainer, wait for it, or give this run another name or store.path"
        )
        self.holder = holder
        self.until = until


class CaptureError(AglError):
    """Recorded calls cannot be joined into exactly true training data."""


class MissingTokensError(CaptureError):
    """A call of a trained agent carries no token ids."""


class EmptyAnswerError(MissingTokensError):
    """An answer of a trained agent holds no token; its attempt alone is lost."""


class TokenMismatchError(CaptureError):
    """Token ids, log-probabilities and text of a call do not agree."""


class RolloutError(AglError):
    """One attempt failed; the run records it and continues."""


class AgentError(RolloutError):
    """The user's agent raised."""


class RewardError(RolloutError):
    """A reward function raised, or its value or target is unusable."""


class EngineError(RolloutError):
    """The model backend failed to answer."""


class DeadlineError(RolloutError):
    """The attempt's deadline passed."""


class ContextOverflowError(RolloutError):
    """A prompt is longer than the model's context."""


class TrainingError(AglError):
    """An update cannot be computed from the data at hand."""
