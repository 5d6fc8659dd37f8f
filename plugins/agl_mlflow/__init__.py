"""The ``mlflow`` tracker: runs on an MLflow server or in a file."""
