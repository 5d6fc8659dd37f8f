"""One loopback server that takes what LangSmith, AgentOps and Langfuse send, and tells it as spans."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_LANGSMITH_INFO: Final = {
    "version": "0.0.0",
    "batch_ingest_config": {
        "use_multipart_endpoint": False,
        "scale_up_qsize_trigger": 1000,
        "scale_up_nthreads_limit": 1,
        "scale_down_nempty_limit": 4,
        "size_limit": 100,
        "size_limit_bytes": 20_000_000,
    },
}
_AGENTOPS_TOKEN: Final = {"token": "token", "project_id": "project"}
_ANSWERS: Final[dict[str, Any]] = {"/info": _LANGSMITH_INFO, "/v3/auth/token": _AGENTOPS_TOKEN}
_UNPACK: Final[dict[str, Callable[[bytes], bytes]]] = {
    "": bytes,
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
}


@dataclass(frozen=True)
class Seen:
    """A span that somebody else's tool recorded."""

    id: str
    parent: str | None
    name: str
    kind: str
    """What the tool says it is: ``llm``, ``tool`` ...; empty where it says nothing."""


class Endpoint:
    """Answers every request with success; keeps the spans."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}
        self._lock = Lock()
        keep = self._keep

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                packed = self.headers.get("content-encoding") or ""
                keep(self.path, _UNPACK[packed](self.rfile.read(length)))
                self._answer()

            def do_PATCH(self) -> None:
                self.do_POST()

            def _answer(self) -> None:
                body = json.dumps(_ANSWERS.get(self.path, {})).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                """Keep quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self) -> list[Seen]:
        """The spans that came since the last time."""
        with self._lock:
            seen, self._seen = [*self._seen.values()], {}
        return seen

    def _keep(self, path: str, body: bytes) -> None:
        if path.endswith("/traces"):
            spans = _of_opentelemetry(body)
        elif path.endswith("/runs/batch"):
            spans = _of_langsmith(json.loads(body))
        else:
            return
        with self._lock:
            for span in spans:
                self._seen.setdefault(span.id, span)


def _of_langsmith(batch: dict[str, Any]) -> list[Seen]:
    """A run that had ended when it was sent comes as one; the others come a second time."""
    return [
        Seen(run["id"], run.get("parent_run_id"), run["name"], run.get("run_type") or "")
        for run in batch.get("post") or ()
    ]


_KINDS: Final = (
    "agentops.span.kind",
    "langfuse.observation.type",
    "openinference.span.kind",
    "gen_ai.operation.name",
)


def _of_opentelemetry(body: bytes) -> list[Seen]:
    found: list[Seen] = []
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                told = {pair.key: pair.value.string_value for pair in span.attributes}
                kind = next((told[key] for key in _KINDS if key in told), "")
                parent = span.parent_span_id.hex() or None
                found.append(Seen(span.span_id.hex(), parent, span.name, kind.lower()))
    return found
