"""``agl serve``: serves trained weights and tuned prompts at an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import click
import msgspec
from agl_endpoints import OneModel, Routing, key_for, openai_server, tls_options
from agl_stores import is_checkpoint

from agl_core.app import load_plugins, make_engine, with_weights
from agl_core.cli.group import CliState, debug_option, plugin_option
from agl_core.config import RESOLVED, RunConfig, load_config, resolve, resolve_policies
from agl_core.errors import ConfigError
from agl_core.gateway import Route
from agl_core.interfaces import Engine
from agl_core.plugins import PluginManager
from agl_core.serving import given_key
from agl_core.training import checkpoint_of, verify
from agl_core.types import Policy, PromptTemplate

_POLICIES = "policies"
"""Folder of a checkpoint with a folder of weights per policy."""


@click.command(short_help="Serve trained weights and tuned prompts to any OpenAI client.")
@click.argument("target")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, help="0: one the system chooses.")
@tls_options
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where the weights lie; auto: the GPU where there is one.",
)
@plugin_option
@debug_option
@click.pass_obj
def command(state: CliState, target: str, host: str, port: int, device: str) -> None:
    """Serve what was learned as chat completions and Responses until interrupted.

    TARGET is a directory of weights, a run's directory, the name of a run in agl_runs, or a
    checkpoint. On this machine the key may be anything. Beyond it (--host 0.0.0.0) clients give the
    key in AGL_API_KEY, or else a new one that is printed, as OPENAI_API_KEY.

    Weights: the model's name is the directory's; a request for another one gets 404. Point
    OPENAI_BASE_URL at the printed address.

    A run is served by its best checkpoint. Give each agent its own base URL, ending in
    /agent/NAME/v1: its requests go to the policy that served it in the run, whatever model they
    name, and have its tuned prompt in place of the program's text. A run that trained no weights
    needs its endpoint.
    """
    plugins = state.plugins()
    asyncio.run(serve(target, host=host, port=port, device=device, plugins=plugins))


async def serve(
    target: str | Path,
    *,
    host: str,
    port: int,
    device: str = "auto",
    plugins: PluginManager | None = None,
    ready: asyncio.Future[str] | None = None,
) -> None:
    """Serve until cancelled.

    Args:
        target: Directory of weights, checkpoint, run's directory, or run's name.
        host: Address to listen on.
        port: 0 lets the system choose one.
        device: Device of an engine that loads weights.
        plugins: Loaded plugins; None: load built-in and installed ones.
        ready: Receives the base URL when the server accepts requests.

    Raises:
        ConfigError: there is nothing to serve, or the address is in use.
        TrainingError: a file of the checkpoint is damaged.
    """
    known = plugins or load_plugins()
    opened = _weights if _has_weights(Path(target)) else _run
    async with opened(Path(target), device, known) as (routing, describe):
        key = key_for(host)
        server = openai_server(routing, plugins=lambda: known, key=key)
        try:
            url = await server.start(host, port)
            for line in (*describe(url), *_said(key), "Ctrl+C ends it"):
                click.echo(line)
            if ready is not None:
                ready.set_result(f"{url}/v1")
            await asyncio.Event().wait()
        finally:
            await server.stop()


def _said(key: str) -> list[str]:
    """Return what to print of a key; one of the environment's is not shown."""
    if not key:
        return []
    return ["Clients need the key in AGL_API_KEY" if key == given_key() else f"Key: {key}"]


def _has_weights(directory: Path) -> bool:
    """Return whether a directory is neither a checkpoint nor a run, and exists."""
    run = (directory / "checkpoints").is_dir() or (directory / "prompts").is_dir()
    return directory.is_dir() and not run and not is_checkpoint(directory)


Opened = AsyncGenerator[tuple[Routing, Callable[[str], list[str]]]]
"""Yields what answers requests, and a function that describes it at a URL."""


@asynccontextmanager
async def _weights(target: Path, device: str, plugins: PluginManager) -> Opened:
    """Serve one directory of weights."""
    directory = await asyncio.to_thread(target.resolve)
    checkpoint = checkpoint_of(directory)
    if checkpoint is not None:
        await verify(checkpoint)
    policy = Policy(name=directory.name, model=str(directory))
    async with _started(_local(device), [policy], plugins) as engine:
        routing = OneModel(engine.backend(policy.name), policy.name)
        yield routing, lambda url: [f"Serving {policy.name!r} at {url}/v1"]


@asynccontextmanager
async def _run(target: Path, device: str, plugins: PluginManager) -> Opened:
    """Serve the policies and prompts of a run's checkpoint."""
    from agl_results._agents import Agents  # noqa: PLC0415
    from agl_results._prompts import checkpoint_at  # noqa: PLC0415

    checkpoint = await asyncio.to_thread(checkpoint_at(str(target)).resolve)
    state = await verify(checkpoint)
    trained = {path.name: str(path) for path in (checkpoint / _POLICIES).glob("*")}
    prompts = {name: each for name, each in state.prompts.items() if each.agents}
    if not trained and all(prompt.known is None for prompt in prompts.values()):
        raise ConfigError(
            f"Checkpoint {checkpoint} has nothing to serve: no weights, and no captured prompt. "
            f"agl export {target} --prompts DIR writes prompts that the program reads itself"
        )
    overrides = [f"engine.device={device}"] if device != "auto" else []
    config = load_config(checkpoint.parents[1] / RESOLVED, overrides)
    policies = [
        msgspec.structs.replace(each, model=trained.get(each.name, each.model))
        for each in resolve_policies(config, training=False)
        if each.share is None and not each.base_url
    ]
    async with _started(_local(device) if trained else config, policies, plugins) as engine:
        routes = [Route(policy, engine.backend(policy.name)) for policy in policies]
        learned = [policy for policy in policies if policy.name in trained]
        yield Agents(routes, prompts), lambda url: [*_lines(url, checkpoint, learned, prompts)]


def _local(device: str) -> RunConfig:
    """Return a configuration of the default engine, which loads weights in this process."""
    return resolve({"engine": {"device": device}})


@asynccontextmanager
async def _started(
    config: RunConfig, policies: Sequence[Policy], plugins: PluginManager
) -> AsyncGenerator[Engine]:
    engine = make_engine(config, plugins, None, policies=policies)
    if engine.trains:
        policies = with_weights(policies, plugins)
    try:
        await engine.start(policies)
        yield engine
    finally:
        await engine.stop()


def _lines(
    url: str, checkpoint: Path, trained: Sequence[Policy], prompts: Mapping[str, PromptTemplate]
) -> Iterator[str]:
    """Yield the base URLs of agents, and what each of them gets."""
    yield f"Serving {checkpoint}; base URLs by agent:"
    gets: dict[str, list[str]] = {}
    for policy in trained:
        for agent in policy.agents:
            gets.setdefault(agent, []).append(f"weights {policy.name!r}")
    for name, prompt in prompts.items():
        for agent in prompt.agents if prompt.known is not None else ():
            gets.setdefault(agent, []).append(f"prompt {name!r}")
    for agent, learned in gets.items():
        yield f"  {url}/agent/{quote(agent, safe='*?[]')}/v1: {', '.join(learned)}"
    for name, prompt in prompts.items():
        if prompt.known is None:
            yield f"Prompt {name!r} is read by the program itself: agl export writes it"
