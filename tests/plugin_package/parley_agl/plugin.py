"""Hooks of this package; importing them loads neither the framework nor the registered objects."""

from __future__ import annotations

from agl_core import hookimpl
from agl_core.interfaces import Register


@hookimpl
def agl_register_integrations(register: Register) -> None:
    register(
        "parley",
        "parley_agl.integration:ParleyIntegration",
        summary="Parley: agents by the names of their speakers",
    )


@hookimpl
def agl_register_rewards(register: Register) -> None:
    register(
        "concise",
        "parley_agl.concise:Concise",
        config="parley_agl.concise:ConciseOptions",
        summary="The expected text is there, in few words",
    )


@hookimpl
def agl_register_algorithms(register: Register) -> None:
    register(
        "rank",
        "parley_agl.rank:Rank",
        config="parley_agl.rank:RankOptions",
        summary="Each attempt by the share of its siblings that it beats",
    )


@hookimpl
def agl_register_stores(register: Register) -> None:
    register(
        "snapshot",
        "parley_agl.snapshot:make_store",
        config="parley_agl.snapshot:SnapshotOptions",
        summary="one small file, which every write replaces",
    )


@hookimpl
def agl_register_engines(register: Register) -> None:
    register(
        "phrases",
        "parley_agl.phrases:PhrasesEngine",
        config="parley_agl.phrases:PhrasesOptions",
        summary="Policies that say words of a list",
    )


@hookimpl
def agl_register_losses(register: Register) -> None:
    register(
        "phrases.policy_gradient",
        "parley_agl.phrases:PolicyGradient",
        config="parley_agl.phrases:LossOptions",
        summary="The clipped policy gradient, with a ratio for each word",
    )


@hookimpl
def agl_register_routes(register: Register) -> None:
    register(
        "GET /whoami",
        "parley_agl.whoami:WhoAmI",
        summary="which attempt and agent a request belongs to",
    )


@hookimpl
def agl_register_commands(register: Register) -> None:
    register(
        "parley",
        "parley_agl.command:command",
        summary="show the advantages that rank gives to a group of returns",
    )
