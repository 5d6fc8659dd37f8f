"""A database for MLflow, which takes it seconds to make."""

from pathlib import Path

import pytest
from mlflow import MlflowClient


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """MLflow asks SQLAlchemy 2.1 for what that gives up later."""
    quiet = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")
    for item in items:
        if "empty_mlflow" in getattr(item, "fixturenames", ()):
            item.add_marker(quiet)


@pytest.fixture(scope="session")
def empty_mlflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{file}").search_experiments()
    return file
