import logging
import subprocess
import sys

import click
import pytest

from agl_core.cli.group import cli
from agl_core.errors import AgentError, ConfigError, PluginError
from tests.installed import INSTALLED

COMMAND_PLUGIN = """
import click
from agl_core.plugins import hookimpl

@click.command()
def hello():
    click.echo("hello from a plugin")

@hookimpl
def agl_register_commands(register):
    register("hello", "{module}:hello", summary="say hello")
    register("later", "no_such_framework_module:command", summary="needs a framework")
    register("store.hello", "{module}:hello", summary="say hello of a store")
"""


@pytest.fixture
def raising(monkeypatch):
    """Make ``agl plugins`` raise."""

    def set_error(error):
        @click.command()
        def command():
            raise error

        monkeypatch.setattr("agl_doctor._plugins.command", command)

    return set_error


@pytest.fixture
def agl_program(monkeypatch, capsys):
    """Run the program ``agl`` with environment variables; gives what it printed."""

    def run(**environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit):
            cli.main([], prog_name="agl")
        return capsys.readouterr().out

    return run


def test_help_lists_the_commands_with_their_summaries(agl):
    result = agl("--help")

    assert result.exit_code == 0
    for name in ("train", "eval", "trace", "plugins"):
        assert f"  {name} " in result.stdout
    assert "train the named agents" in result.stdout


def test_help_imports_no_command():
    code = (
        "import sys\n"
        "from agl_core.cli.group import cli\n"
        "cli.main(['--help'], standalone_mode=False)\n"
        "print([m for m in sys.modules if m in ('agl_core.cli.train', 'rich', 'agl_core.app')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8"
    )

    assert done.stdout.strip().endswith("[]")


def test_the_version_is_shown(agl):
    assert agl("--version").stdout.startswith("agl-core ")


@pytest.mark.parametrize(
    ("error", "status"),
    [(ConfigError("wrong key"), 2), (AgentError("it failed"), 1), (PluginError("broken"), 1)],
)
def test_our_errors_are_one_paragraph_without_a_traceback(agl, raising, error, status):
    raising(error)

    result = agl("plugins")

    assert result.exit_code == status
    assert result.stderr.strip() == f"Error: {error}"
    assert result.stdout == ""


def test_a_message_of_several_lines_becomes_one_paragraph(agl, raising):
    raising(ConfigError("one\n  two"))

    assert agl("plugins").stderr == "Error: one two\n"


def test_debug_shows_the_traceback(agl, raising):
    raising(ConfigError("wrong key"))

    result = agl("--debug", "plugins")

    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "ConfigError: wrong key" in result.stderr


def test_debug_may_follow_the_command(agl):
    result = agl("train", "absent.toml", "--debug")

    assert result.exit_code == 2
    assert "Traceback" in result.stderr


def test_a_cause_is_hinted_at(agl, raising):
    error = PluginError("broken")
    error.__cause__ = ValueError("why")
    raising(error)

    assert "--debug" in agl("plugins").stderr


def test_an_interrupt_ends_with_130(agl, raising):
    raising(KeyboardInterrupt())

    result = agl("plugins")

    assert result.exit_code == 130
    assert "Interrupted" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_error_that_is_not_ours_is_a_bug_and_keeps_its_traceback(agl, raising):
    raising(ZeroDivisionError("a bug"))

    assert isinstance(agl("plugins").exception, ZeroDivisionError)


def test_an_unknown_command_names_the_nearest(agl):
    result = agl("trian")

    assert result.exit_code == 2
    assert "did you mean 'train'?" in result.stderr


def test_a_local_plugin_brings_a_command(agl, tmp_path, monkeypatch):
    file = tmp_path / "greeter.py"
    file.write_text(COMMAND_PLUGIN.replace("{module}", "greeter"), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert "say hello" in agl("--plugin", file, "--help").stdout
    assert agl("--plugin", file, "hello").stdout == "hello from a plugin\n"
    missing = agl("--plugin", file, "later")
    assert missing.exit_code == 1
    assert missing.stderr.startswith("Error: Plugin 'greeter'")
    sys.modules.pop("greeter", None)


def test_a_broken_local_plugin_is_an_error(agl, tmp_path):
    (tmp_path / "bad.py").write_text("1 / 0", encoding="utf-8")

    result = agl("--plugin", "bad.py", "trace", ".")

    assert result.exit_code == 1
    assert "ZeroDivisionError" in result.stderr


def test_warnings_are_shown_unless_logging_is_set_up(agl, monkeypatch):
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", f"{INSTALLED},nobody")
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])

    assert "Warning: AGL_DISABLE_PLUGINS names 'nobody'" in agl("plugins").stderr
    monkeypatch.setattr(root, "handlers", [logging.NullHandler()])
    assert "nobody" not in agl("plugins").stderr
    assert logging.getLogger("agl_core").handlers == [
        handler
        for handler in logging.getLogger("agl_core").handlers
        if isinstance(handler, logging.NullHandler)
    ]


def test_outside_standalone_mode_the_status_is_returned():
    assert cli.main(["--version"], standalone_mode=False) == 0


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--help"], 0),
        (["plugins"], 0),
        (["train", "☃.toml"], 2),
        (["eval", "☃.toml"], 2),
        (["trace", "☃"], 2),
        (["train", "run.toml", "--print-config"], 0),
    ],
)
def test_a_console_without_unicode_ends_nothing(arguments, status, tmp_path):
    (tmp_path / "run.toml").write_text('name = "☃"', encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "agl_core.cli", *arguments],
        capture_output=True,
        check=False,
        cwd=tmp_path,
        env={"PYTHONUTF8": "0", "PYTHONIOENCODING": "cp1252", "PATH": "", "SYSTEMROOT": ""},
    )

    assert b"UnicodeEncodeError" not in done.stderr
    assert b"Traceback" not in done.stderr
    assert done.returncode == status, done.stderr


OPTION_PLUGIN = """
import click
from agl_core.plugins import hookimpl

def greet(ctx, _, value):
    if value:
        ctx.call_on_close(lambda: click.echo("goodbye"))

def option():
    return click.Option(
        ["--greet"], is_flag=True, expose_value=False, callback=greet, help="Be kind."
    )

@hookimpl
def agl_register_commands(register):
    register("plugins.--greet", "polite:option", summary="be kind")
    register("store.ls.--greet", "polite:option", summary="be kind")
"""


def test_a_plugin_adds_an_option_to_a_command(agl, tmp_path, monkeypatch):
    (tmp_path / "polite.py").write_text(OPTION_PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))

    assert "Be kind." in agl("--plugin", "polite.py", "plugins", "--help").stdout
    assert agl("--plugin", "polite.py", "plugins", "--greet").stdout.endswith("goodbye\n")
    assert "Be kind." in agl("--plugin", "polite.py", "store", "ls", "--help").stdout
    for command in (["store"], ["train"]):
        assert "Be kind." not in agl("--plugin", "polite.py", *command, "--help").stdout
    assert agl("plugins", "--greet").exit_code == 2
    sys.modules.pop("polite", None)


def test_a_dotted_name_is_a_subcommand_of_its_group_alone(agl, tmp_path):
    (tmp_path / "dotted.py").write_text(COMMAND_PLUGIN.replace("{module}", "dotted"))

    inside = agl("--plugin", "dotted.py", "store", "hello")
    listed = agl("--plugin", "dotted.py", "store", "--help")
    outside = agl("--plugin", "dotted.py", "--help")

    assert inside.stdout == "hello from a plugin\n"
    assert "say hello of a store" in listed.stdout
    assert "say hello of a store" not in outside.stdout
    assert agl("--plugin", "dotted.py", "store.hello").exit_code == 2


@pytest.mark.parametrize("group", [(), ("store",)])
def test_the_error_for_an_unknown_command_lists_those_of_its_group(agl, group):
    result = agl(*group, "servw" if group else "trian")

    near, other = ("serve", "train") if group else ("train", "store.serve")
    assert result.exit_code == 2
    assert f"did you mean {near!r}?; known: " in result.stderr
    assert other not in result.stderr.partition("known: ")[2].split(", ")


def test_a_shell_completes_commands_of_plugins_and_their_options(agl_program):
    completed = {
        words: agl_program(_AGL_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(number))
        for words, number in (("agl tr", 1), ("agl trace --m", 2))
    }
    assert {"plain,train", "plain,trace"} <= {*completed["agl tr"].split()}
    assert completed["agl trace --m"].split() == ["plain,--messages"]
    assert "complete -o nosort -F" in agl_program(_AGL_COMPLETE="bash_source")
