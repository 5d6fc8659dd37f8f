"""Against a far end with vLLM's control endpoints, its forms of errors, and a log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from agl_vllm import VllmControl
from aiohttp import web

from agl_core.errors import ConfigError, EngineError


class FarEnd:
    """What a vLLM server does at these paths, without a model."""

    def __init__(
        self, *, dev_mode: bool = True, lora: bool = True, key: str = "", device: str = ""
    ) -> None:
        self.log: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.paused = False
        self.weights = "/old"
        self.loadable = True
        self.cache_held = False
        self.broken = ""
        self.adapters: dict[str, str] = {}
        self.key = key
        self.device = device
        self.tensors = ["dp0:model.embed_tokens.weight", "dp0:lm_head.weight"]
        self.app = web.Application()
        if dev_mode:
            self.app.router.add_post("/pause", self._pause)
            self.app.router.add_post("/resume", self._resume)
            self.app.router.add_post("/collective_rpc", self._rpc)
            self.app.router.add_post("/reset_prefix_cache", self._reset)
        if device:
            self.app.router.add_get("/server_info", self._info)
            self.app.router.add_post("/weight_checker", self._checksums)
        if lora:
            self.app.router.add_post("/v1/load_lora_adapter", self._load)
            self.app.router.add_post("/v1/unload_lora_adapter", self._unload)
        self.url = ""

    async def _pause(self, request: web.Request) -> web.Response:
        self._note(request, f"pause {request.query['mode']}")
        self.paused = True
        return web.json_response({"status": "paused"})

    async def _resume(self, request: web.Request) -> web.Response:
        self._note(request, "resume")
        if self.broken:
            return web.Response(text=self.broken, status=503)
        self.paused = False
        return web.json_response({"status": "resumed"})

    async def _rpc(self, request: web.Request) -> web.Response:
        body = await request.json()
        self._note(request, body["method"])
        if not self.loadable:
            error = {"message": "no safetensors", "type": "InternalServerError", "code": 500}
            return web.json_response({"error": error}, status=500)
        self.weights = body["kwargs"]["weights_path"]
        return web.json_response({"results": [None]})

    async def _reset(self, request: web.Request) -> web.Response:
        self._note(request, "reset")
        return web.json_response({"success": not self.cache_held})

    async def _info(self, request: web.Request) -> web.Response:
        assert request.query["config_format"] == "json"
        settings = {"device_config": {"device": self.device}, "model_config": {}}
        return web.json_response({"vllm_config": settings})

    async def _checksums(self, request: web.Request) -> web.Response:
        self._note(request, (await request.json())["action"])
        return web.json_response({"checksums": dict.fromkeys(self.tensors, "0a")})

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        self._note(request, f"load {body['lora_name']}")
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if body["lora_name"] in self.adapters:
            error = {"message": "has already been loaded", "type": "InvalidUserInput", "code": 400}
            return web.json_response({"error": error}, status=400)
        if not self.loadable:
            text = "Loading lora failed: No adapter found for <path>"
            error = {"message": text, "type": "NotFoundError", "code": 404}
            return web.json_response({"error": error}, status=404)
        self.adapters[body["lora_name"]] = body["lora_path"]
        return web.Response(text=f"Success: LoRA adapter '{body['lora_name']}' added successfully.")

    async def _unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        self._note(request, f"unload {name}")
        if self.adapters.pop(name, None) is None:
            text = f"The lora adapter '{name}' cannot be found."
            error = {"message": text, "type": "NotFoundError", "code": 404}
            return web.json_response({"error": error}, status=404)
        return web.Response(text="Success")

    def _note(self, request: web.Request, what: str) -> None:
        self.log.append(what)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})


Start = Callable[..., Any]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def begin(**options: Any) -> tuple[FarEnd, VllmControl]:
            end = FarEnd(**options)
            runner = web.AppRunner(end.app, shutdown_timeout=1.0)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            host, port = runner.addresses[0][:2]
            end.url = f"http://{host}:{port}"
            control = await stack.enter_async_context(VllmControl(f"{end.url}/v1", end.key))
            return end, control

        yield begin


async def test_new_weights_serve_after_everything_of_the_old_ones_is_gone(start: Start) -> None:
    end, control = await start(key="k")
    await control.sync_weights("/new")
    assert end.log == ["pause wait", "reload_weights", "reset", "resume"]
    assert end.weights == "/new"
    assert not end.paused
    assert {headers["authorization"] for headers in end.headers} == {"Bearer k"}


async def test_a_server_that_could_not_load_stays_paused_until_a_sync_succeeds(
    start: Start,
) -> None:
    end, control = await start()
    end.loadable = False
    with pytest.raises(EngineError, match=r"HTTP 500: no safetensors\. The server stays paused"):
        await control.sync_weights("/broken")
    assert end.paused
    end.loadable = True
    await control.sync_weights("/new")
    assert not end.paused


async def test_on_a_cpu_the_head_has_to_be_one_of_its_own(start: Start) -> None:
    """Its packed copy stays old otherwise, below new weights, and nothing tells."""
    end, control = await start(device="cpu")
    await control.sync_weights("/new")
    await control.sync_weights("/newer")
    assert end.log.count("checksum") == 1
    tied, control = await start(device="cpu")
    tied.tensors.pop()
    with pytest.raises(ConfigError, match=r"tied embeddings.*tie_word_embeddings = false"):
        await control.sync_weights("/new")
    assert (tied.weights, tied.paused) == ("/old", False)
    elsewhere, control = await start(device="cuda")
    elsewhere.tensors.pop()
    await control.sync_weights("/new")
    assert "checksum" not in elsewhere.log


async def test_a_head_of_the_servers_has_to_be_in_the_new_weights_too(
    start: Start, tmp_path: Path
) -> None:
    end, control = await start(device="cpu")
    for name, tensors in [("tied", ["embed"]), ("whole", ["embed", "lm_head.weight"])]:
        header = json.dumps({tensor: {"dtype": "F32"} for tensor in tensors}).encode()
        (tmp_path / name).mkdir()
        file = tmp_path / name / "model.safetensors"
        file.write_bytes(len(header).to_bytes(8, "little") + header + b"weights")
    with pytest.raises(ConfigError, match=r"no lm_head\.weight"):
        await control.sync_weights(str(tmp_path / "tied"))
    assert (end.weights, end.paused) == ("/old", False)
    await control.sync_weights(str(tmp_path / "whole"))
    (tmp_path / "whole" / "model.safetensors").write_bytes(b"no weights at all")
    await control.sync_weights(str(tmp_path / "whole"))  # the server's to judge


async def test_a_cache_that_calls_under_way_hold_is_no_success(start: Start) -> None:
    end, control = await start()
    end.cache_held = True
    with pytest.raises(EngineError, match="calls under way hold it"):
        await control.sync_weights("/new")
    assert end.paused
    with pytest.raises(EngineError, match="Pause it first"):
        await control.reset_prefix_cache()


async def test_adapters_come_under_new_names_and_go(start: Start) -> None:
    end, control = await start(key="k")
    await control.load_adapter("writer-v1", "/a/1")
    await control.load_adapter("writer-v2", "/a/2")
    with pytest.raises(EngineError, match="HTTP 400: has already been loaded"):
        await control.load_adapter("writer-v2", "/a/3")
    end.loadable = False
    with pytest.raises(EngineError, match="HTTP 404: Loading lora failed: No adapter found"):
        await control.load_adapter("writer-v3", "/nowhere")
    await control.unload_adapter("writer-v1")
    await control.unload_adapter("writer-v1")
    assert end.adapters == {"writer-v2": "/a/2"}


@pytest.mark.parametrize("method", ["pause", "resume", "reset_prefix_cache"])
async def test_a_server_without_dev_mode_is_told_to_be_started_with_it(
    start: Start, method: str
) -> None:
    _, control = await start(dev_mode=False)
    with pytest.raises(ConfigError, match=r"HTTP 404.*VLLM_SERVER_DEV_MODE=1"):
        await getattr(control, method)()


async def test_weights_of_a_server_without_dev_mode_stay_as_they_are(start: Start) -> None:
    end, control = await start(dev_mode=False)
    for change in (control.reload_weights, control.sync_weights):
        with pytest.raises(ConfigError, match="VLLM_SERVER_DEV_MODE=1"):
            await change("/new")
    assert end.weights == "/old"


async def test_a_server_without_adapters_names_both_of_its_settings(start: Start) -> None:
    _, control = await start(lora=False)
    for change in (control.load_adapter("a", "/a"), control.unload_adapter("a")):
        with pytest.raises(ConfigError, match=r"--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDAT"):
            await change


async def test_a_wrong_key_is_told(start: Start) -> None:
    end, _ = await start(key="k")
    async with VllmControl(end.url, "another") as control:
        with pytest.raises(ConfigError, match=r"HTTP 401: Unauthorized.*--api-key"):
            await control.load_adapter("a", "/a")


@pytest.mark.parametrize("directory", ["", "runs/step-3", "./a"])
async def test_a_relative_path_is_refused_before_anything_is_sent(
    start: Start, directory: str
) -> None:
    end, control = await start()
    for change in (
        control.sync_weights(directory),
        control.reload_weights(directory),
        control.load_adapter("a", directory),
    ):
        with pytest.raises(ConfigError, match="absolute path"):
            await change
    assert end.log == []


async def test_a_server_that_is_gone_or_silent_is_an_engine_error() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with VllmControl(url, timeout_s=0.1) as control:
        with pytest.raises(EngineError, match="did not answer within"):
            await control.pause()
        server.close()
        await server.wait_closed()
        with pytest.raises(EngineError, match="Cannot reach"):
            await control.pause()


@pytest.mark.parametrize("body", ["oops", '{"detail": "oops"}', '{"error": "oops"}'])
async def test_errors_of_any_form_are_told(start: Start, body: str) -> None:
    end, control = await start()
    end.broken = body
    with pytest.raises(EngineError, match="HTTP 503: oops"):
        await control.resume()


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="looks like http://host:port"):
        VllmControl("localhost:8000")
