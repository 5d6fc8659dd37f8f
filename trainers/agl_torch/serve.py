"""``agl serve``: a directory of weights behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click
from aiohttp import web

from agl_core.errors import ConfigError, EngineError
from agl_core.types import Policy

if TYPE_CHECKING:
    from agl_torch.backend import TorchBackend

_TIMEOUT_S = 600.0


@click.command(short_help="Serve trained weights to any OpenAI client.")
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, help="0: one the system chooses.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where the weights lie; auto: the GPU where there is one.",
)
def command(directory: str, host: str, port: int, device: str) -> None:
    """Serve the weights in DIRECTORY as OpenAI chat completions until interrupted.

    The model's name is the directory's. Point OPENAI_BASE_URL at the printed address; the key may
    be anything.
    """
    asyncio.run(serve(Path(directory).resolve(), host=host, port=port, device=device))


async def serve(
    directory: Path,
    *,
    host: str,
    port: int,
    device: str = "auto",
    ready: asyncio.Future[str] | None = None,
) -> None:
    """Serve until cancelled.

    Args:
        directory: Weights and tokenizer as `Engine.save` or Hugging Face writes them.
        host: Address to listen on.
        port: 0 for one the system chooses.
        device: As `TorchOptions.device`.
        ready: Is given the base URL once requests are taken.

    Raises:
        ConfigError: the directory holds no model, or the address is taken.
    """
    from agl_torch.engine import TorchEngine  # noqa: PLC0415
    from agl_torch.options import TorchOptions  # noqa: PLC0415

    name = directory.name
    engine = TorchEngine(TorchOptions.model_validate({"device": device}), None)
    await engine.start([Policy(name=name, model=str(directory))])
    runner = web.AppRunner(_app(name, engine.backend(name)))
    try:
        await runner.setup()
        url = await _listen(runner, host, port)
        click.echo(f"Serving {name!r} at {url} (Ctrl+C ends it)")
        if ready is not None:
            ready.set_result(url)
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
        await engine.stop()


async def _listen(runner: web.AppRunner, host: str, port: int) -> str:
    site = web.TCPSite(runner, host, port)
    try:
        await site.start()
    except OSError as error:
        raise ConfigError(f"Cannot listen on {host}:{port} ({error}): choose another --port") from (
            error
        )
    taken = runner.addresses[0][1]
    return f"http://{host}:{taken}/v1"


def _app(name: str, backend: TorchBackend) -> web.Application:
    async def chat(request: web.Request) -> web.StreamResponse:
        try:
            reply = await backend.chat(await request.read(), headers={}, timeout_s=_TIMEOUT_S)
        except EngineError as error:
            return web.json_response({"error": {"message": str(error)}}, status=503)
        try:
            response = web.StreamResponse(status=reply.status, headers=reply.headers)
            await response.prepare(request)
            async for chunk in reply.body():
                await response.write(chunk)
            await response.write_eof()
        finally:
            await reply.close()
        return response

    async def tokenize(request: web.Request) -> web.Response:
        try:
            counted = await backend.count_tokens(await request.read())
        except ValueError as error:
            return web.json_response({"error": {"message": str(error)}}, status=400)
        return web.json_response({"count": counted.tokens, "max_model_len": counted.limit})

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"}]})

    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_post("/tokenize", tokenize)
    app.router.add_get("/v1/models", models)
    return app
