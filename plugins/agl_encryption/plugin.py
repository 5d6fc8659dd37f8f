"""Hooks of this package; this module does not import cryptography."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_layers(register: Register) -> None:
    register(
        "encryption",
        "agl_encryption._layer:make_layer",
        extra="encryption",
        config="agl_encryption._options:EncryptionOptions",
        summary="encrypts contents in the store, by AES-256-GCM with keys of your own",
    )


@hookimpl
def agl_register_commands(register: Register) -> None:
    register(
        "store.key",
        "agl_encryption._commands:key",
        summary="print a new key for encrypted stores",
    )
    register(
        "store.rekey",
        "agl_encryption._commands:rekey",
        extra="encryption",
        summary="encrypt everything in a store with the active key",
    )
