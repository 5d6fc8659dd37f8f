"""The plugin's hooks: what it registers of stores, engines, gateways and commands."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_stores(register: Register) -> None:
    register(
        "http",
        "agl_remote._store_client:make_store",
        config="agl_remote._options:HttpStoreOptions",
        summary="kept by agl store serve",
    )


@hookimpl
def agl_register_engines(register: Register) -> None:
    register(
        "http",
        "agl_remote._engine:HttpEngine",
        config="agl_remote._engine:HttpOptions",
        summary="an OpenAI-compatible endpoint that serves but does not train",
    )


@hookimpl
def agl_register_gateways(register: Register) -> None:
    for scheme in ("http", "https"):
        register(scheme, "agl_remote._gateway_client:make_gateway", summary="served by agl gateway")


@hookimpl
def agl_register_commands(register: Register) -> None:
    register(
        "gateway",
        "agl_remote._gateway_serve:command",
        summary="serve the model calls of a training of other processes",
    )
    register(
        "runner",
        "agl_remote._runner_serve:command",
        summary="run the attempts of a training of another process",
    )
    register(
        "train.--ca",
        "agl_endpoints:make_ca_option",
        summary="trust the authorities in a file at https:// addresses",
    )
    register(
        "store.serve",
        "agl_remote._store_serve:command",
        summary="serve a store to other processes",
    )
