import errno
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agl_core.app.facade import Invocation, current_invocation
from agl_core.errors import TrainingError
from tests.installed import OWN

SCRIPT = """
import sys
from agl_core.app import train
from agl_core.config import RunConfig
from neighbour import name
assert __name__ == "__main__"
train(RunConfig(name=name + "-" + "-".join(sys.argv[1:])))
"""

SCORE = "0.500 [0.250, 0.750] n=8"
SPEED = "tokens/s 200 | rollouts 8"
LOST = "lost reward_unknown_call=1"


def write(folder, name, text):
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize("form", ["position", "option"])
@pytest.mark.parametrize(
    ("name", "text"),
    [("run.toml", "name = 'x'\n"), ("run.yaml", "name: x\n"), ("run.json", '{"name": "x"}')],
)
def test_a_configuration_is_trained(agl, app, tmp_path, form, name, text):
    write(tmp_path, name, text)
    arguments = [name] if form == "position" else ["--config", name]

    result = agl("train", *arguments, "--set", "algorithm.lr=1e-6", "--set", "train.steps=3")

    assert result.exit_code == 0, result.stderr
    config = app.made[0].config
    assert (config.name, config.algorithm.lr, config.train.steps) == ("x", 1e-6, 3)


def test_without_a_terminal_every_step_is_a_line(agl, app, tmp_path):
    """G9: a score is printed once."""
    write(tmp_path, "run.toml", "[train]\nsteps = 2\n")

    lines = agl("train", "run.toml").stdout.splitlines()

    assert [" | ".join(re.split("  +", line)) for line in lines] == [
        "run run: 2 steps",
        f"eval at step 2: {SCORE} | pass@4 0.900 [0.800, 1.000] n=8 | failed engine=1",
        f"step 1/2 | reward 0.250 | {SPEED} | failures agent=1 | {LOST} | eta 0:00:02",
        f"step 2/2 | reward 0.500 | {SPEED} | failures agent=2 | {LOST} | eta 0:00:00",
        "run run: 2 steps, 32 calls, 0:00:04",
        "lost late=3",
        "weights agl_runs/run/checkpoints/2-é",
    ]


def test_the_figures_are_written_as_json(agl, app, tmp_path):
    write(tmp_path, "run.toml", "")

    agl("train", "run.toml", "--json", "out/figures.json")

    figures = json.loads((tmp_path / "out" / "figures.json").read_text(encoding="utf-8"))
    assert figures["calls"] == 32
    assert figures["lost"] == {"late": 3}
    assert figures["best"].endswith("2-é")
    assert figures["evaluations"][0]["pass_at_k"]["4"]["mean"] == 0.9


def test_json_on_standard_output_stands_alone(agl, app, tmp_path):
    write(tmp_path, "run.toml", "")

    result = agl("train", "run.toml", "--json", "-")

    assert json.loads(result.stdout)["run_id"] == "run"
    assert result.stdout.isascii()
    assert "step 1/2" in result.stderr


def test_json_that_cannot_be_written_is_an_error(agl, app, tmp_path):
    write(tmp_path, "run.toml", "")
    write(tmp_path, "file", "")

    result = agl("train", "run.toml", "--json", "file/figures.json")

    assert result.exit_code == 2
    assert "'file/figures.json' cannot be written: '" in result.stderr
    assert "is no folder that you may write to" in result.stderr
    assert not app.made


def test_json_into_a_folder_that_nobody_can_make_is_an_error(agl, app, tmp_path, monkeypatch):
    """Of a file system such as /proc the rights say that root may write to it."""
    write(tmp_path, "run.toml", "")

    def refused(path, *arguments, **options):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refused)
    result = agl("train", "run.toml", "--json", "new/figures.json")

    assert result.exit_code == 2
    assert "'new/figures.json' cannot be written" in result.stderr
    assert not app.made


def test_json_needs_no_folder_beforehand(agl, app, tmp_path):
    write(tmp_path, "run.toml", "")

    assert agl("train", "run.toml", "--json", "new/deep/figures.json").exit_code == 0
    assert agl("train", "run.toml", "--json", "new/deep/figures.json").exit_code == 0
    assert (tmp_path / "new" / "deep" / "figures.json").is_file()


NEEDS = {
    "import no_such_module_": "No module named 'no_such_module_'",
    "from importlib.metadata import version\nversion('none-such')": "No package metadata was found",
    "import json\n\nfrom json import laods": "cannot import name 'laods' from 'json'",
    "raise ImportError('two\\nlines')": "two lines",
}


@pytest.mark.parametrize("code", NEEDS)
def test_an_import_that_fails_in_a_program_is_one_line(code, tmp_path):
    write(tmp_path, "program.py", code)
    write(tmp_path, "script.py", "import program")
    command = [sys.executable, "-m", "agl_core.cli", "train", "script.py"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    whole = subprocess.run(
        [*command, "--debug"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    line = 1 + code.count("\n")
    assert done.returncode == whole.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert f"program.py, line {line}: {NEEDS[code]}" in done.stderr
    assert f"install what it needs for {sys.executable}" in done.stderr
    assert "Traceback" in whole.stderr


def test_plugins_of_configuration_and_command_line_are_loaded_once(agl, app, tmp_path):
    write(tmp_path, "one.py", "")
    write(tmp_path, "two.py", "")
    write(tmp_path, "run.toml", 'plugins = ["one.py"]\n')

    result = agl("--plugin", "two.py", "train", "run.toml", "--plugin", "one.py")

    assert result.exit_code == 0, result.stderr
    loaded = [row.name for row in app.made[0].plugins.plugins() if row.state != "disabled"]
    names = [name for name in loaded if name not in OWN]
    assert names == ["builtin", "one", "two"]
    stored = [str(tmp_path / "one.py"), str(tmp_path / "two.py")]
    assert app.made[0].config.plugins == stored


def test_the_resolved_configuration_can_be_printed(agl, app, tmp_path):
    write(tmp_path, "run.toml", "")

    result = agl("train", "run.toml", "--print-config", "--set", "seed=5")

    assert json.loads(result.stdout)["seed"] == 5
    assert app.made == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("algorithm.name = 'grop'", "Unknown algorithm 'grop'; did you mean 'grpo'?"),
        ("algorithm.clip_hihg = 1", "did you mean 'algorithm.clip_high'?"),
        ("engine.name = 'htpt'", "Unknown engine 'htpt'; did you mean 'http'?"),
        ("engine.name = 'http'", "engine.base_url"),
        ("store.name = 'sqlit'", "Unknown store 'sqlit'"),
        ("capture.adapter = 'x'", "Unknown adapter 'x'"),
        ("[[rewards]]\nname = 'numerc'", "Unknown reward 'numerc'; did you mean 'numeric'?"),
        ("[[rewards]]\nname = 'numeric'\nrel_tl = 1", "did you mean 'rewards.0.rel_tol'?"),
        ("[[rewards]]\nname = 'a.py:f'\nx = 1", "rewards.0.x"),
        ("[[trackers]]\nname = 'nobody'", "Unknown tracker 'nobody'"),
    ],
)
def test_a_configuration_with_unknown_plugins_is_not_printed(agl, tmp_path, text, reason):
    """G16: --print-config checks the names and options of plugins."""
    write(tmp_path, "run.toml", text)

    result = agl("train", "run.toml", "--print-config")

    assert result.exit_code == 2
    assert reason in result.stderr
    assert result.stdout == ""


def test_what_the_users_code_raises_begins_with_its_own_frames(tmp_path):
    """G8: no frame of agl-core, click or importlib comes before the line that failed."""
    write(tmp_path, "mine.py", "def build():\n    return 1 / 0\n\nagent = build()\n")
    write(tmp_path, "run.toml", "agent = 'mine.py:agent'\nmodel = 'm'\nengine.name = 'http'")
    command = [sys.executable, "-m", "agl_core.cli", "train"]

    told, whole = (
        subprocess.run(
            [*command, "run.toml", *more], capture_output=True, check=False, cwd=tmp_path, text=True
        )
        for more in ([], ["--debug"])
    )

    frames = [line for line in told.stderr.splitlines() if line.startswith("  File ")]
    assert told.returncode == whole.returncode == 1
    assert len(frames) == 2
    assert all("mine.py" in frame for frame in frames)
    assert told.stderr.strip().endswith("ZeroDivisionError: division by zero")
    assert "references.py" in whole.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "Name one file"),
        (["run.toml", "--config", "run.toml"], "Name one file"),
        (["run.toml", "--", "x"], "Only a script takes arguments"),
        (["run.toml", "--set", "train.stpes=1"], "did you mean 'train.steps'?"),
        (["absent.toml"], "cannot read 'absent.toml'"),
        (["absent.py"], "no script 'absent.py'"),
        (["script.py", "--print-config"], "takes a configuration file"),
        (["run.toml", "--sett", "x"], "No such option"),
    ],
)
def test_wrong_usage_ends_with_2_and_a_reason(agl, app, tmp_path, arguments, reason):
    write(tmp_path, "run.toml", "")

    result = agl("train", *arguments)

    assert result.exit_code == 2
    assert reason in " ".join(result.stderr.split())
    assert app.made == []


def test_a_failing_run_ends_with_1(agl, app, tmp_path):
    write(tmp_path, "run.toml", "")
    app.error = TrainingError("the update cannot be computed")

    result = agl("train", "run.toml")

    assert (result.exit_code, result.stderr) == (1, "Error: the update cannot be computed\n")


def test_a_script_runs_as_main_beside_its_neighbours(agl, app, tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    write(folder, "script.py", SCRIPT)
    write(folder, "neighbour.py", "name = 'mine'")
    path, argv = list(sys.path), list(sys.argv)

    result = agl("train", "project/script.py", "--json", "figures.json", "--", "a", "--b")

    assert result.exit_code == 0, result.stderr
    assert app.made[0].config.name == "mine-a---b"
    assert "step 2/2" in result.stdout
    assert json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))["calls"] == 32
    assert (sys.path, sys.argv) == (path, argv)
    sys.modules.pop("neighbour", None)


def test_a_scripts_runs_take_the_options(agl, app, tmp_path):
    write(
        tmp_path,
        "script.py",
        "from agl_core.app import train\n"
        "from agl_core.config import RunConfig\n"
        "from agl_core.app.facade import current_invocation\n"
        "found = current_invocation()\n"
        "train(RunConfig(name=' '.join((*found.overrides, *found.plugins))))\n",
    )

    agl("train", "script.py", "--set", "seed=3", "--plugin", "mine.py")

    assert app.made[0].config.name == "seed=3 mine.py"
    assert current_invocation() == Invocation()

    write(tmp_path, "early.py", "")
    result = agl("--plugin", "early.py", "train", "script.py", "--plugin", "mine.py")
    assert result.exit_code == 0, result.stderr
    assert app.made[1].config.name == "early.py mine.py"


def test_a_script_that_trains_nothing_is_an_error(agl, app, tmp_path):
    write(tmp_path, "script.py", "if __name__ == 'script': 1 / 0")

    result = agl("train", "script.py")

    assert result.exit_code == 2
    assert "without calling agl.train" in result.stderr


def test_what_a_script_raises_arrives_unchanged(agl, app, tmp_path):
    write(tmp_path, "leaves.py", "import sys\nsys.exit(7)")
    write(tmp_path, "fails.py", "1 / 0")

    assert agl("train", "leaves.py").exit_code == 7
    assert isinstance(agl("train", "fails.py").exception, ZeroDivisionError)


def test_an_interrupted_process_ends_with_130(tmp_path):
    write(
        tmp_path,
        "script.py",
        # A parent that ignores the signal hands that down, so the handler is put back first.
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "signal.raise_signal(signal.SIGINT)\n",
    )

    done = subprocess.run(
        [sys.executable, "-m", "agl_core.cli", "train", "script.py"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        cwd=tmp_path,
    )

    assert done.returncode == 130, done.stderr
    assert "Interrupted." in done.stderr
