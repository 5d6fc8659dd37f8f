"""The application: addresses, the frame around every page, files, and errors as pages."""

# Types of the web framework are not known where the extra is not installed.
# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import jinja2
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from agl_core.errors import AglError, MissingExtraError, PluginError
from agl_core.plugins import PluginManager
from agl_core.text import replaced
from agl_dashboard._format import FILTERS
from agl_dashboard._guard import Guard
from agl_dashboard._panel import Changing, Page, Panel, View, address
from agl_dashboard._sent import sent_object
from agl_dashboard._sources import ShownRun, ShownRuns
from agl_dashboard._text import cut, excerpt, visible

_log = logging.getLogger(__name__)

_HERE: Final = Path(__file__).parent
_KINDS: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_PING_S: Final = 15.0
_DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPanel:
    """A panel with its name in addresses."""

    name: str
    panel: Panel


class Dashboard:
    """All pages over the same sources."""

    def __init__(self, sources: ShownRuns, plugins: PluginManager) -> None:
        """Make the panels of all plugins, except those whose extra is not installed."""
        self._sources = sources
        made = _made(plugins)
        self._panels = sorted(made, key=lambda each: (each.panel.order, each.name))
        self._by_name = {each.name: each.panel for each in made}
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        names: dict[str, Any] = {"cut": cut, "excerpt": excerpt, "visible": visible}
        cast("dict[str, Any]", self._templates.filters).update(FILTERS | names)
        cast("dict[str, Any]", self._templates.globals).update(address=address)

    def app(self, *, key: str = "") -> Guard:
        """Return the ASGI application.

        Args:
            key: The key that every request needs; empty to answer loopback alone.
        """
        routes = [
            Route("/", self._first),
            Route("/static/{name}", _static),
            Route("/favicon.ico", _icon),
            Route("/events/{run:path}", self._events),
            Route("/run/{run:path}/-/{panel}", self._of_run),
            Route("/run/{run:path}/-/{panel}/{rest:path}", self._of_run),
            Route("/run/{run:path}/-/{panel}/{rest:path}", self._change, methods=["POST"]),
            Route("/run/{run:path}", self._of_run_first),
            Route("/{panel}", self._of_all),
            Route("/{panel}/{rest:path}", self._of_all),
        ]
        app = Starlette(routes=routes, exception_handlers={404: self._missing})
        return Guard(app, key=key, write=self._sources.writing.write)

    async def _first(self, _: Request) -> Response:
        names = self._sources.names()
        if len(names) == 1:
            return RedirectResponse(address(names[0], "overview"))
        return RedirectResponse("/runs")

    async def _of_run_first(self, request: Request) -> Response:
        return RedirectResponse(address(request.path_params["run"], "overview"))

    async def _of_all(self, request: Request) -> Response:
        return await self._answer(request, None)

    async def _of_run(self, request: Request) -> Response:
        source = self._sources.get(request.path_params["run"])
        if source is None:
            return await self._missing(request, None)
        await source.look()
        return await self._answer(request, source)

    async def _answer(self, request: Request, source: ShownRun | None) -> Response:
        name = request.path_params["panel"]
        panel = self._by_name.get(name)
        if panel is None or (panel.scope == "run") != (source is not None):
            return await self._missing(request, None)
        view = self._view(request, source)
        try:
            page = await panel.page(view)
        except (AglError, OSError) as error:
            page = _problem(str(error), self._render)
        return self._frame(page, view, status=200) if isinstance(page, Page) else cast("Any", page)

    def _view(self, request: Request, source: ShownRun | None) -> View:
        query = request.query_params
        return View(
            sources=self._sources,
            panel=request.path_params["panel"],
            query=dict(query),
            lists={each: query.getlist(each) for each in query},
            rest=request.path_params.get("rest", ""),
            source=source,
            template=self._render,
        )

    async def _change(self, request: Request) -> Response:
        source = self._sources.get(request.path_params["run"])
        panel = self._by_name.get(request.path_params["panel"])
        if source is None or not hasattr(panel, "change"):
            return PlainTextResponse("Nothing can be changed there", 404)
        await source.look()
        try:
            sent = await sent_object(request)
            answer = await cast("Changing", panel).change(self._view(request, source), sent)
        except (AglError, OSError) as error:
            return PlainTextResponse(replaced(str(error)), 400)
        return cast("Any", answer)

    async def _missing(self, request: Request, _: Exception | None) -> Response:
        view = View(sources=self._sources, panel="", query={}, template=self._render)
        text = f"There is no page {visible(request.url.path)} here: it may have been deleted."
        return self._frame(_problem(text, self._render), view, status=404)

    def _frame(self, page: Page, view: View, *, status: int) -> Response:
        source = view.source
        tabs = [each for each in self._panels if each.panel.title]
        html = self._render(
            "frame.html",
            page=page,
            view=view,
            source=source,
            runs=[each for each in tabs if each.panel.scope == "all"],
            tabs=[each for each in tabs if each.panel.scope == "run"] if source else [],
            status=source.files.history.status if source and source.files else "",
        )
        return Response(str(html).encode("utf-8", "replace"), status, media_type="text/html")

    def _render(self, template: str, **values: Any) -> Markup:
        return Markup(self._templates.get_template(template).render(**values))  # noqa: S704

    async def _events(self, request: Request) -> Response:
        source = self._sources.get(request.path_params["run"])
        if source is None:
            return Response(status_code=404)
        await source.look()
        since = request.headers.get("last-event-id", request.query_params.get("since", ""))
        return StreamingResponse(_changes(source, since), media_type="text/event-stream")


def _made(plugins: PluginManager) -> list[NamedPanel]:
    registry = plugins.registry("panels")
    made: list[NamedPanel] = []
    for name in registry.names():
        try:
            made.append(NamedPanel(name=name, panel=registry.create(name)))
        except MissingExtraError:
            continue
        except PluginError as error:
            _log.warning("The page %r is left out: %s", name, error)
    return made


async def _changes(source: ShownRun, since: str) -> AsyncGenerator[bytes, None]:
    """Yield an event for every change; its id is the version, from which a browser resumes."""
    yield b"retry: 2000\n\n"
    while True:
        await source.look()
        if await source.changed(since, _PING_S):
            since = source.version
            progress = source.reading.progress if source.readable else None
            status = source.files.history.status if source.files else ""
            data = {
                "rows": progress.rows if progress else 0,
                "uncounted": progress.uncounted if progress else 0,
                "status": status,
                "problem": source.problem,
            }
            yield f"event: change\nid: {since}\ndata: {json.dumps(data)}\n\n".encode()
        else:
            yield b": ping\n\n"


def _problem(text: str, render: Any) -> Page:
    return Page(title="Nothing to show", body=render("problem.html", text=text))


async def _icon(_: Request) -> Response:
    """Answer browsers that ask for an icon without a page that names one."""
    return FileResponse(_HERE / "static" / "icon.svg", media_type="image/svg+xml")


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name == "plotly.js":
        return _plotly()
    file = _HERE / "static" / name
    if file.suffix not in _KINDS or file.parent != _HERE / "static" or not file.is_file():
        return Response(status_code=404)
    return FileResponse(file, media_type=_KINDS[file.suffix], headers={"cache-control": "no-cache"})


def _plotly() -> Response:
    """Return the script that the distribution of plotly ships."""
    spec = importlib.util.find_spec("plotly")
    places = cast("Sequence[str]", (spec.submodule_search_locations if spec else None) or ())
    for place in places:
        file = Path(place) / "package_data" / "plotly.min.js"
        if file.is_file():
            headers: Mapping[str, str] = {"cache-control": f"max-age={_DAY_S}"}
            return FileResponse(file, media_type="text/javascript", headers=dict(headers))
    return Response("plotly is not installed: pip install 'agl-core[dashboard]'", 404)
