"""A loopback chat endpoint that answers from a script and keeps what it was sent."""

from collections.abc import Iterator
from typing import Any

import pytest
from agl_testing.fake_openai import FakeOpenAI, FakeReply


class ScriptedEndpoint:
    """Answers a request that offers tools with ``call``, any other with ``text``."""

    def __init__(self) -> None:
        self.server = FakeOpenAI(self._reply)
        self.call: dict[str, Any] = {"name": "lookup", "arguments": '{"item": "metal guitar"}'}
        self.text = "The metal guitar costs 98 pounds."

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [answer.body for answer in self.server.log]

    def _reply(self, request: dict[str, Any]) -> FakeReply:
        if request.get("tools") and self.call:
            return FakeReply(tool_calls=[{"id": "call-1", **self.call}])
        return FakeReply(text=self.text)


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedEndpoint]:
    script = ScriptedEndpoint()
    with script.server as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        monkeypatch.setenv("OPENAI_MODEL", "tiny")
        monkeypatch.setenv("LANGSMITH_TRACING", "false")
        yield script
