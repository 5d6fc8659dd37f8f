"""Options of the tracker."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class TemplateOptions(BaseModel):
    """Options of the tracker ``template``."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    file: str = "numbers.json"
    """Name of the file in the run's directory."""
