"""Encrypted contents of stores.

`_layer` is the layer of every store. `_records` states what of each record is encrypted and where
the encrypted value is stored, `_cipher` encrypts values, `_keys` reads keys and `_rekey` encrypts a
store with another key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.faces import late

if TYPE_CHECKING:
    from agl_encryption._errors import EncryptionError as EncryptionError
    from agl_encryption._options import EncryptionOptions as EncryptionOptions
else:
    __getattr__, __dir__, __all__ = late(__name__)
