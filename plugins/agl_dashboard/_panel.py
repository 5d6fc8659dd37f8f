"""Pages of the dashboard: what a panel is, and what it gets and returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import quote, urlencode

from markupsafe import Markup

if TYPE_CHECKING:
    from agl_dashboard._sources import ShownRun, ShownRuns


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The content of a page; the frame around it is the dashboard's."""

    title: str
    body: Markup
    """HTML; a plain text is to be escaped with `markupsafe.escape`."""
    scripts: tuple[str, ...] = ()
    """Modules of the dashboard's own that the page loads, such as ``charts``."""
    live: bool = True
    """Whether the elements with ``data-live`` follow the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One request for a page."""

    sources: ShownRuns
    panel: str
    """Name of the panel."""
    query: Mapping[str, str]
    """The state of the page: the last value of each name in the address."""
    lists: Mapping[str, list[str]] = field(default_factory=dict[str, list[str]])
    """All values of each name."""
    rest: str = ""
    """What follows the panel's name in the address."""
    source: ShownRun | None = None
    """The run; None for a page of all runs."""
    template: Callable[..., Markup]
    """Renders one of the dashboard's templates: ``template(name, **values)``."""

    @property
    def run(self) -> ShownRun:
        """The run of a page of one."""
        assert self.source is not None, "a panel whose scope is 'run' has a run"
        return self.source

    def url(self, panel: str = "", rest: str = "", **query: Any) -> str:
        """Return the address of a page of the same run; None and empty values are left out."""
        return address(self.run.name, panel or self.panel, rest, **query)

    def here(self, **changes: Any) -> str:
        """Return the address of this page with another state; None and empty values are removed."""
        return self.url(self.panel, self.rest, **{**self.query, **changes})

    def rows(self, name: str, **query: Any) -> str:
        """Return the address of a file with the rows of this page, such as ``runs.csv``."""
        if self.source is not None:
            return self.url(self.panel, name, **query)
        return _with(f"/{quote(self.panel, safe='')}/{name}", query)


def address(run: str, panel: str, rest: str = "", **query: Any) -> str:
    """Return the path of a run's page."""
    path = f"/run/{quote(run, safe='/')}/-/{quote(panel, safe='')}"
    path += f"/{quote(rest, safe='/')}" if rest else ""
    return _with(path, query)


def _with(path: str, query: Mapping[str, Any]) -> str:
    kept = {name: value for name, value in query.items() if value not in (None, "", [])}
    text = urlencode(kept, doseq=True, errors="replace")
    return f"{path}?{text}" if kept else path


class PlainAnswer(Protocol):
    """Another answer than a page: an ASGI application, such as a `starlette.responses.Response`."""

    def __call__(self, scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        """Send the answer."""
        ...


class Changing(Protocol):
    """A panel that takes changes, of ``agl dashboard --write``."""

    async def change(self, view: View, sent: Mapping[str, Any]) -> PlainAnswer:
        """Take what a page sent by POST, an object of JSON, to the address of this panel.

        An `agl_core.errors.AglError` is answered as the reason why nothing was changed.
        """
        ...


class Panel(Protocol):
    """One page of the dashboard; its name in `agl_register_panels` is a part of its address."""

    title: str
    """Its name in the navigation; empty to leave it out."""
    order: int
    """Its place in the navigation, from the smallest."""
    scope: Literal["all", "run"]
    """Whether it shows all runs or one."""

    async def page(self, view: View) -> Page | PlainAnswer:
        """Return the page, or another answer such as a file.

        An `agl_core.errors.AglError` is shown as the reason why there is nothing to see.
        """
        ...
