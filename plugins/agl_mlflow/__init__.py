"""The ``mlflow`` tracker: runs at an MLflow server or in a file."""
