"""Options of the tracker."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator


class MlflowOptions(BaseModel):
    """Options of the tracker ``mlflow``."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    tracking_uri: str | None = None
    """Address of a server or database; ``MLFLOW_TRACKING_URI`` when None, or else the file
    ``mlflow.db`` beside the runs."""
    experiment: str | None = None
    """Runs that belong together; ``MLFLOW_EXPERIMENT_NAME`` when None, or else ``agl``."""
    tags: dict[str, str] = Field(default_factory=dict[str, str])
    """Of the run."""

    @field_validator("tracking_uri")
    @classmethod
    def _holds_no_secret(cls, given: str | None) -> str | None:
        if given is not None and urlsplit(given).password:
            raise ValueError(
                "a password does not belong into a configuration, which is stored with the run: "
                "put the address into MLFLOW_TRACKING_URI, or the password into "
                "MLFLOW_TRACKING_PASSWORD"
            )
        return given
