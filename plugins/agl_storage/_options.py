"""The options of the section ``[storage]``."""

from __future__ import annotations

import os
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from agl_core.errors import ConfigError


class StorageOptions(BaseModel):
    """Where a run's checkpoints, report and prompts are mirrored."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    url: str = ""
    """Address such as ``s3://bucket/prefix``, in any scheme that fsspec writes to."""
    url_env: str = "AGL_STORAGE_URL"
    """Environment variable with the address, read where `url` is empty."""
    options: dict[str, Any] = {}
    """Arguments of the file system of fsspec, such as ``endpoint_url``. Keys and passwords are
    better left to the environment, such as ``AWS_SECRET_ACCESS_KEY``."""
    required: bool = False
    """End the run with an error where an upload has failed five times in a row, or something is
    not mirrored at the end."""
    timeout_s: float = Field(default=30.0, gt=0, le=600)
    """Longest wait for the storage's first answer, before the run starts."""
    flush_s: float = Field(default=300.0, ge=0, le=86_400)
    """Longest wait at the end of the run for the last uploads."""
    prune: bool = True
    """Keep no more checkpoints in the storage than in the run's directory; False keeps all."""

    def address(self) -> str:
        """Return the address.

        Raises:
            ConfigError: there is none.
        """
        url = self.url or os.environ.get(self.url_env, "")
        if "://" not in url:
            raise ConfigError(
                f"Configuration: storage.url = {url!r} is no address (the environment variable "
                f"{self.url_env} is read where it is empty): write s3://BUCKET/PREFIX"
            )
        return url.rstrip("/")
