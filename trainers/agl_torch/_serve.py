"""``agl serve``: serves a directory of weights at an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
from agl_endpoints import openai_server

from agl_core.training import checkpoint_of, verify
from agl_core.types import Policy


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
    """Serve the weights in DIRECTORY as chat completions and Responses until interrupted.

    The model's name is the directory's; a request for another one gets 404. Point OPENAI_BASE_URL
    at the printed address; the key may be anything.
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
        directory: Weights and tokenizer, as `Engine.save` or transformers writes them.
        host: Address to listen on.
        port: 0 lets the system choose one.
        device: As in `TorchOptions.device`.
        ready: Receives the base URL when the server accepts requests.

    Raises:
        ConfigError: the directory has no model, or the address is in use.
        TrainingError: the directory belongs to a checkpoint with a damaged file.
    """
    checkpoint = checkpoint_of(directory)
    if checkpoint is not None:
        await verify(checkpoint)
    from agl_torch.engine import TorchEngine  # noqa: PLC0415
    from agl_torch.options import TorchOptions  # noqa: PLC0415

    name = directory.name
    engine = TorchEngine(TorchOptions.model_validate({"device": device}), None)
    await engine.start([Policy(name=name, model=str(directory))])
    server = openai_server(engine.backend(name), model=name)
    try:
        url = f"{await server.start(host, port)}/v1"
        click.echo(f"Serving {name!r} at {url} (Ctrl+C ends it)")
        if ready is not None:
            ready.set_result(url)
        await asyncio.Event().wait()
    finally:
        await server.stop()
        await engine.stop()
