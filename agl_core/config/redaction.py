"""A configuration as others may see it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from agl_core.config.models import RunConfig
from agl_core.config.validation import SECRET

_BLANK: Final = "***"
_LOGIN: Final = re.compile(r"(\w://)[^/@\s]+@")
"""Name and password in an address."""


def without_secrets(config: RunConfig) -> dict[str, Any]:
    """Plain data of a configuration; text under keys that name a secret is blanked out.

    A key that ends in ``_env`` names a variable of the environment, which is no secret itself.
    """
    return {key: _shown(key, value) for key, value in config.model_dump(mode="json").items()}


def _shown(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        inner = cast("Mapping[str, Any]", value)
        return {name: _shown(name, each) for name, each in inner.items()}
    if isinstance(value, list):
        return [_shown(key, each) for each in cast("list[Any]", value)]
    if not isinstance(value, str):
        return value
    if SECRET.search(key) and not key.endswith("_env"):
        return _BLANK
    return _LOGIN.sub(rf"\1{_BLANK}@", value)
