"""The hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl

_EXTRA = "verl"


@hookimpl
def agl_register_engines(register: Register) -> None:
    register(
        "verl",
        "agl_verl._engine:VerlEngine",
        extra=_EXTRA,
        config="agl_verl._options:VerlOptions",
        summary="trains on a Ray cluster with verl, serves with its vLLM replicas",
    )


@hookimpl
def agl_register_algorithms(register: Register) -> None:
    register(
        "verl",
        "agl_verl._algorithm:VerlAlgorithm",
        extra=_EXTRA,
        config="agl_verl._algorithm:VerlAlgorithmOptions",
        summary="verl's estimators and policy losses, by verl's own names",
    )


@hookimpl
def agl_register_losses(register: Register) -> None:
    register(
        "verl.policy_gradient",
        "agl_verl._loss:PolicyLoss",
        extra=_EXTRA,
        config="agl_verl._loss:PolicyLossOptions",
        summary="A policy loss of verl's, with a weight per token",
    )
    register(
        "verl.cross_entropy",
        "agl_verl._loss:CrossEntropy",
        extra=_EXTRA,
        summary="Imitates the sampled tokens in proportion to their weights",
    )


@hookimpl
def agl_register_trackers(register: Register) -> None:
    register(
        "verl",
        "agl_verl._tracker:VerlTracker",
        extra=_EXTRA,
        config="agl_verl._tracker:VerlTrackerOptions",
        summary="verl's own tracking backends, by verl's own names",
    )


@hookimpl
def agl_register_checks(register: Register) -> None:
    register(
        "verl",
        "agl_verl._plan:check",
        extra=_EXTRA,
        summary="memory that weights, micro-batches and replicas take of a GPU",
    )


@hookimpl
def agl_register_commands(register: Register) -> None:
    register(
        "verl-plan",
        "agl_verl._plan:command",
        extra=_EXTRA,
        summary="print what a run would give verl, and the memory it would take",
    )
