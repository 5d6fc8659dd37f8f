"""The interface `Reading` and its records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal, Protocol, Self, get_args

import msgspec

from agl_core.errors import ConfigError
from agl_core.types import Mode, RolloutStatus

Sort = Literal["time", "step", "reward", "seconds", "tokens"]
"""Order of a page: by id, which is by time, or by a number and then by id."""
SORTS: Final[tuple[Sort, ...]] = get_args(Sort)
"""The orders of rows."""

SumKind = Literal[
    "rollouts",
    "seconds",
    "cause",
    "channel",
    "agent",
    "calls",
    "prompt_tokens",
    "sampled_tokens",
    "call_seconds",
    "latency",
    "cut",
    "errors",
    "tools",
    "edge",
]
"""What is summed, and what `Sum.name` then is:

- ``rollouts``: ended rollouts, by status; ``seconds``: their durations.
- ``cause``: failed rollouts, by the kind of the failure.
- ``channel``: rewards of rollouts, by channel; ``agent``: rewards for an agent and its calls, by agent.
- ``calls``, ``prompt_tokens``, ``sampled_tokens`` (both as `usage_of` counts), ``call_seconds``, ``cut`` (answers that reached a
  limit of length), ``errors`` and ``tools``, by agent.
- ``latency``: calls by policy, agent and duration, for `latencies`.
- ``edge``: runs of an agent, by the agent around it, or else the one that ended before it, as
  ``from\\nto``; the first is empty for an agent that the program called.
"""


class RolloutRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout as a row: what is known without its spans, and their sums."""

    id: str
    run_id: str
    mode: Mode
    task: str
    """Id of the task."""
    group_id: str
    step: int
    status: RolloutStatus
    resources_version: int = 0
    cause: str = ""
    """Kind of the failure; empty without one."""
    attempts: int = 0
    created_at: float = 0.0
    seconds: float = 0.0
    """Duration of the last attempt; 0 before its end."""
    counted: bool = False
    """Whether its spans are summed in the fields below; they are after its end."""
    reward: float | None = None
    """Sum of the last attempt's rewards, weighted by channel; None without any."""
    channels: dict[str, float] = {}
    """Unweighted sum of rewards by channel."""
    calls: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    agents: tuple[str, ...] = ()
    """Names of the agents, sorted; reserved names only with calls."""

    def key(self, sort: Sort) -> float:
        """Return the number by which a page is sorted; 0 for ``time``."""
        if sort == "reward":
            return -math.inf if self.reward is None else self.reward
        if sort == "tokens":
            return self.prompt_tokens + self.sampled_tokens
        return 0 if sort == "time" else getattr(self, sort)


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """The place after which a page begins."""

    key: float
    id: str

    @classmethod
    def of(cls, row: RolloutRow, sort: Sort) -> Self:
        """Return the place of a row."""
        return cls(key=row.key(sort), id=row.id)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text of a cursor.

        Raises:
            ConfigError: it is not one.
        """
        number, _, row = text.partition(":")
        try:
            key = float(number)
        except ValueError:
            key = math.nan
        if math.isnan(key) or not row:
            raise ConfigError(f"{text!r:.80} is not a place in a list: remove it from the address")
        return cls(key=key, id=row)

    def __str__(self) -> str:
        return f"{self.key!r}:{self.id}"


class RowFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filter of rows; empty fields do not filter."""

    id: str = ""
    run_id: str = ""
    mode: Mode | None = None
    statuses: tuple[RolloutStatus, ...] = ()
    cause: str = ""
    first_step: int | None = None
    last_step: int | None = None
    resources_version: int | None = None
    task: str = ""
    group_id: str = ""
    agent: str = ""
    least_reward: float | None = None
    most_reward: float | None = None
    text: str = ""
    """Words that all begin a word of what was said: in any order, upper or lower case. In a script that
    puts no spaces between words, any letters in a row are found. Only rollouts that are
    `RolloutRow.counted` can be found."""


class RowQuery(msgspec.Struct, frozen=True, kw_only=True):
    """One page of rows; rows without a reward are last if the greatest come first."""

    wanted: RowFilter = RowFilter()
    sort: Sort = "time"
    """Order; rows of equal numbers are in the order of their ids."""
    descending: bool = True
    """Greatest or newest first."""
    after: Cursor | None = None
    """Place of the last row of the page before, in the same order."""
    limit: int = 50
    """Greatest number of rows."""


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """A number of rows, counted up to a limit."""

    number: int
    capped: bool = False
    """Whether there are more."""


class Sum(msgspec.Struct, frozen=True, kw_only=True):
    """A sum over the counted rollouts of one step."""

    mode: Mode
    step: int
    kind: SumKind
    name: str
    n: int
    """Number of summands."""
    total: float


class Reading(Protocol):
    """Answers for pages that show the rollouts of a store, whether or not its run has ended."""

    async def rows(self, query: RowQuery) -> list[RolloutRow]:
        """Return one page of rows.

        Raises:
            ConfigError: the text of the filter cannot be searched for.
        """
        ...

    async def count(self, wanted: RowFilter, *, most: int = 10_000) -> Count:
        """Count the rows that match, up to `most`."""
        ...

    async def sums(
        self, kinds: Sequence[SumKind], *, run_id: str = "", first_step: int = 0
    ) -> list[Sum]:
        """Return sums over counted rollouts, by mode, step, kind and name.

        Args:
            kinds: What is summed.
            run_id: Only rollouts of this run; empty for all.
            first_step: Only rollouts of this step and of later ones.
        """
        ...
