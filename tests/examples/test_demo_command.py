"""What `agl demo` refuses before anything starts."""

from agl_demo.command import command
from click.testing import CliRunner

from agl_core.errors import ConfigError


def test_the_demo_needs_held_out_tasks() -> None:
    result = CliRunner().invoke(command, ["--set", "tasks.val=null"])
    assert isinstance(result.exception, ConfigError)
    assert "held-out" in str(result.exception)


def test_a_misspelt_setting_is_named() -> None:
    result = CliRunner().invoke(command, ["--set", "train.stepz=3"])
    assert isinstance(result.exception, ConfigError)
    assert "train.steps" in str(result.exception)
