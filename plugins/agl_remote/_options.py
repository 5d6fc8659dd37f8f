"""Options of the store ``http``."""

from __future__ import annotations

from pydantic import Field, field_validator

from agl_core.store import StoreOptions


class HttpStoreOptions(StoreOptions):
    """Options of the store ``http``; the server's options are those of ``agl store serve``."""

    schemes = ("http", "https")

    url: str = Field(default="", validate_default=True)
    """Address that ``agl store serve`` prints; the key is in ``AGL_API_KEY``."""

    @field_validator("url")
    @classmethod
    def _given(cls, given: str) -> str:
        if not given:
            raise ValueError("the store 'http' needs url, which agl store serve prints")
        return given
