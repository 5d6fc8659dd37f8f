"""The hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl

_EXTRA = "torch"


@hookimpl
def agl_register_engines(register: Register) -> None:
    register(
        "torch",
        "agl_torch.engine:TorchEngine",
        extra=_EXTRA,
        config="agl_torch.options:TorchOptions",
        summary="Serves and trains a Hugging Face model in this process",
    )


@hookimpl
def agl_register_losses(register: Register) -> None:
    register(
        "torch.policy_gradient",
        "agl_torch.losses.policy_gradient:PolicyGradient",
        extra=_EXTRA,
        config="agl_torch.losses.policy_gradient:ClipOptions",
        summary="Clipped policy gradient with ratios per token or per sequence",
    )
    register(
        "torch.cross_entropy",
        "agl_torch.losses.cross_entropy:CrossEntropy",
        extra=_EXTRA,
        summary="Imitates the sampled tokens in proportion to their weights",
    )


@hookimpl
def agl_register_checks(register: Register) -> None:
    register(
        "torch",
        "agl_torch._doctor:check",
        extra=_EXTRA,
        summary="memory that weights, optimizer and a pass take of the device",
    )
