"""A loopback model server that logs what reached it, and attempts to send from."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pytest

from agl_core.tracing import AttemptContext, Recorder, attach, origins_of
from agl_core.types import LLM, Attempt, Resources, Rollout, Task

CHUNK = {
    "id": "r1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": None}],
}
ANSWER = {
    "id": "r1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hi"},
            "finish_reason": "stop",
        }
    ],
}


@dataclass
class ModelServer:
    url: str = ""
    log: list[tuple[str, dict[str, str], dict]] = field(default_factory=list)
    """Path, lower-case headers and body of every request, in order."""
    failures: int = 0
    """Answer this many requests with 500 first."""
    hold: threading.Event | None = None
    """Answers wait for it."""

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def identities(self, name: str) -> list[str | None]:
        values = [headers.get(f"x-agl-{name}") for _, headers, _ in self.log]
        return [unquote(value) if value is not None else None for value in values]


@pytest.fixture
def make_server():
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(serving())


@pytest.fixture
def server(make_server):
    return make_server()


@contextlib.contextmanager
def serving():
    model = ModelServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.answer({})

        def do_POST(self):
            self.answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def answer(self, body):
            headers = {name.lower(): value for name, value in self.headers.items()}
            model.log.append((self.path, headers, body))
            status = 200
            if model.failures:
                model.failures -= 1
                status = 500
            if model.hold is not None:
                model.hold.wait()
            if body.get("stream") and status == 200:
                events = [json.dumps(CHUNK)] * 3 + ["[DONE]"]
                data = "".join(f"data: {event}\n\n" for event in events).encode()
                content_type = "text/event-stream"
            else:
                data, content_type = json.dumps(ANSWER).encode(), "application/json"
            self.send_response(status)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

        def handle_error(self, *_):
            pass

    listener = Server(("127.0.0.1", 0), Handler)
    model.url = f"http://127.0.0.1:{listener.server_address[1]}"
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield model
    if model.hold is not None:
        model.hold.set()
    listener.shutdown()
    thread.join()
    listener.server_close()


@pytest.fixture
def make_context(server):
    def make(name="1", *, seconds=60.0, origins=None, **recorder_options):
        rollout = Rollout(id=f"rollout_{name}", task=Task(id=name), run_id="run")
        attempt = Attempt(id=f"attempt_{name}", rollout_id=rollout.id, fence=1, worker="w")
        return AttemptContext(
            rollout=rollout,
            attempt=attempt,
            llm=LLM(model="m", base_url=server.base_url, api_key="key"),
            resources=Resources(),
            recorder=Recorder(rollout.id, attempt.id, **recorder_options),
            origins=origins_of(server.url) if origins is None else origins,
            deadline=time.monotonic() + seconds,
        )

    return make


@pytest.fixture
def attached():
    attachment = attach()
    yield attachment
    attachment.detach()
