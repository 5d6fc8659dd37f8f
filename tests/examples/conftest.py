"""A loopback chat endpoint that answers from a script and keeps what it was sent."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class ScriptedEndpoint:
    """Answers a request that offers tools with ``call``, any other with ``text``."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.call: dict[str, Any] = {"name": "lookup", "arguments": '{"item": "metal guitar"}'}
        self.text = "The metal guitar costs 98 pounds."

    def reply(self, request: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(request)
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if request.get("tools") and self.call:
            call = {"id": "call-1", "type": "function", "function": self.call}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": request["model"],
            "choices": [choice],
        }


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedEndpoint]:
    script = ScriptedEndpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            answer = json.dumps(script.reply(json.loads(body))).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_args: object) -> None:
            """Keep the access log out of the test output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("OPENAI_MODEL", "tiny")
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    yield script
    server.shutdown()
    server.server_close()
    thread.join()
