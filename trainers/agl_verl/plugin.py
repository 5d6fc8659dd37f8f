"""The hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl

_EXTRA = "verl"


@hookimpl
def agl_register_engines(register: Register) -> None:
    register(
        "verl",
        "agl_verl.engine:VerlEngine",
        extra=_EXTRA,
        config="agl_verl.options:VerlOptions",
        summary="trains on a Ray cluster with verl, serves with its vLLM replicas",
    )


@hookimpl
def agl_register_algorithms(register: Register) -> None:
    register(
        "verl",
        "agl_verl.algorithm:VerlAlgorithm",
        extra=_EXTRA,
        config="agl_verl.algorithm:VerlAlgorithmOptions",
        summary="verl's estimators and policy losses, by verl's own names",
    )


@hookimpl
def agl_register_losses(register: Register) -> None:
    register(
        "verl.policy_gradient",
        "agl_verl.loss:PolicyLoss",
        extra=_EXTRA,
        config="agl_verl.loss:PolicyLossOptions",
        summary="A policy loss of verl's, with a weight per token",
    )


@hookimpl
def agl_register_trackers(register: Register) -> None:
    register(
        "verl",
        "agl_verl.tracker:VerlTracker",
        extra=_EXTRA,
        config="agl_verl.tracker:VerlTrackerOptions",
        summary="verl's own tracking backends, by verl's own names",
    )


@hookimpl
def agl_register_checks(register: Register) -> None:
    register(
        "verl",
        "agl_verl.plan:check",
        extra=_EXTRA,
        summary="memory that weights, micro-batches and replicas take of a GPU",
    )


@hookimpl
def agl_register_commands(register: Register) -> None:
    register(
        "verl-plan",
        "agl_verl.plan:command",
        extra=_EXTRA,
        summary="print what a run would give verl, and the memory it would take",
    )
