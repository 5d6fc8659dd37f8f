"""The simplest proxy: FastAPI, httpx, and a list of all calls.

``plain_proxy.py BACKEND_URL`` prints ``{"port": ...}`` once it listens. Like the gateway, it
requests token ids and log-probabilities from the backend and removes them from the client's answer.
It has no authentication, attempts, retries, deadlines or store.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse

app = FastAPI()
records: list[dict[str, Any]] = []


@app.post("/v1/chat/completions")
async def chat(body: dict[str, Any]) -> Any:
    """Forward one call and store it."""
    asked = {**body, "return_token_ids": True, "logprobs": True}
    answer = (await app.state.client.post(app.state.backend, json=asked)).json()
    choices = answer["choices"]
    _keep(body, answer.pop("prompt_token_ids"), [_tokens(choice) for choice in choices])
    return JSONResponse(answer)


def _tokens(choice: dict[str, Any]) -> tuple[list[int], list[float]]:
    logprobs = choice.pop("logprobs") or {"content": []}
    return choice.pop("token_ids"), [entry["logprob"] for entry in logprobs["content"]]


def _keep(body: dict[str, Any], prompt: list[int], tokens: Any) -> None:
    records.append({"request": body, "prompt_token_ids": prompt, "choices": tokens})


async def _serve(backend: str) -> None:
    app.state.backend = backend + "/chat/completions"
    app.state.client = httpx.AsyncClient(timeout=None)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    sys.stdout.write(json.dumps({"port": listener.getsockname()[1]}) + "\n")
    sys.stdout.flush()
    config = uvicorn.Config(app, log_level="warning", access_log=False)
    await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(sys.argv[1]))
