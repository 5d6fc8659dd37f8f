"""The hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_algorithms(register: Register) -> None:
    register(
        "rft",
        "agl_imitation._rft:RFT",
        config="agl_imitation._rft:RFTOptions",
        summary="imitates the best attempts of each group",
    )
    register(
        "sft",
        "agl_imitation._sft:SFT",
        config="agl_imitation._sft:SFTOptions",
        summary="imitates given conversations, without rollouts",
    )
