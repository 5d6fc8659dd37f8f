"""Hooks of this package; this module does not import mlflow."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_trackers(register: Register) -> None:
    register(
        "mlflow",
        "agl_mlflow._tracker:MlflowTracker",
        extra="mlflow",
        config="agl_mlflow._options:MlflowOptions",
        summary="a run at an MLflow server, or in a file that MLflow shows",
    )
