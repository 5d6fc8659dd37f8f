"""Answers that a server of ours gives in place of a backend's."""

from __future__ import annotations

from typing import Any

import msgspec


class Problem(Exception):  # noqa: N818  an answer, not a failure of the server
    """An HTTP error answer in the form that OpenAI's clients read."""

    def __init__(
        self, status: int, code: str, message: str, *, retry: bool = False, param: str | None = None
    ) -> None:
        """Describe the answer.

        Args:
            status: HTTP status.
            code: Machine-readable cause, ``error.code`` in the body.
            message: What failed, the value, and the fix.
            retry: Whether clients that retry by status should do so.
            param: The field of the request that is at fault.
        """
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry = retry
        self.param = param

    def body(self) -> bytes:
        kind = "invalid_request_error" if self.status < 500 else "gateway_error"  # noqa: PLR2004
        error: dict[str, Any] = {
            "message": self.message,
            "type": kind,
            "param": self.param,
            "code": self.code,
        }
        return msgspec.json.encode({"error": error})
