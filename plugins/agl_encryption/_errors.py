"""The error of values that cannot be decrypted."""

from __future__ import annotations

from agl_core.errors import StoreError


class EncryptionError(StoreError):
    """A stored value cannot be decrypted: its key is missing or wrong, or it was changed."""

    def __init__(self, what: str, key_id: str, text: str) -> None:
        """Build the message.

        Args:
            what: The record, such as ``"The output of attempt 'at_1'"``.
            key_id: Id of the key that encrypted it.
            text: What is wrong, and what to do.
        """
        super().__init__(f"{what} is encrypted with key {key_id!r}, {text}")
        self.key_id = key_id
