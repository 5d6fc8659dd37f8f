"""Each template renders to a plugin that passes its contract as it is."""

import configparser
import importlib
import json
import math
import os
import re
import subprocess
import sys
import tomllib
from array import array

import pytest
from agl_testing.toy_model import SIZE, WEIGHTS, ToyModel

from agl_core.errors import ConfigError
from agl_core.interfaces import AlgorithmSetup
from agl_core.types import Batch, Policy
from tools import new
from tools.new import KINDS, ROOT, has_extra, render, steps

ONE_TOKEN = Batch(
    policy="p",
    step=1,
    tokens=array("i", [1]),
    parents=array("i", [-1]),
    positions=array("i", [0]),
    nodes=array("i", [0]),
    targets=array("i", [2]),
    advantages=array("f", [1.0]),
    weights=array("f", [1.0]),
    logprobs=array("f", [-math.log(SIZE)]),
    temperatures=array("f", [1.0]),
    calls=array("i", [0]),
    call_ids=("call",),
    versions=(0,),
    agents=("agent",),
    groups=array("i", [0]),
)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rendered_plugin_passes_its_contract(kind, tmp_path):
    written = render(kind, "open_house", tmp_path)
    source = tmp_path / KINDS[kind].source
    assert source / "agl_open_house" / "plugin.py" in written
    for path in written:
        assert "template" not in path.read_text(encoding="utf-8").lower()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml")),
            *("-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path / "tests")),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(source), *sys.path[1:]])},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def test_the_rendered_engine_trains_by_the_algorithms_setup(tmp_path, monkeypatch):
    render("engine", "lossy", tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "trainers")
    engine = importlib.import_module("agl_lossy._engine").LossyEngine
    options = importlib.import_module("agl_lossy._options").LossyOptions()
    made = []
    engine(options, AlgorithmSetup(name="grpo", loss_factory=lambda: made.append("loss")))
    assert made == ["loss"]
    for name, value in {"kl_weight": 0.1, "weight_decay": 0.1, "minibatches": 2}.items():
        setup = AlgorithmSetup(name="grpo", loss_factory=list, **{name: value})
        with pytest.raises(ConfigError, match=name):
            engine(options, setup)


async def test_the_rendered_engine_limits_the_norm_of_the_gradient(tmp_path, monkeypatch):
    render("engine", "steady", tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "trainers")
    engine_class = importlib.import_module("agl_steady._engine").SteadyEngine
    options = importlib.import_module("agl_steady._options").SteadyOptions()
    loss = importlib.import_module("agl_steady._loss")
    ToyModel().save(tmp_path / "model", resumable=False)
    moved = []
    for limit in (1e-3, 2e-3, 1e9, 1e12):
        setup = AlgorithmSetup(
            name="grpo",
            loss_factory=lambda: loss.PolicyGradient(loss.PolicyGradientOptions()),
            lr=0.5,
            max_grad_norm=limit,
        )
        engine = engine_class(options, setup)
        await engine.start([Policy(name="p", model=str(tmp_path / "model"), trainable=True)])
        await engine.update(ONE_TOKEN)
        await engine.save("p", str(tmp_path / "saved"))
        moved.append(math.hypot(*json.loads((tmp_path / "saved" / WEIGHTS).read_bytes())))
        await engine.stop()
    assert moved[:2] == pytest.approx([0.5e-3, 1e-3])
    assert moved[2] == moved[3] > 1e-2


def test_every_template_has_a_kind():
    folders = {path.name for path in new.TEMPLATES.iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_environment_that_the_steps_name_has_its_section(kind):
    text = steps(kind, "open_house")
    tox = text.partition("Add to tox.ini:\n")[2].partition("Then run:\n")[0]
    names = {*re.findall(r"open_house-[a-z]+", tox.partition("  sections\n")[0])}
    assert bool(names) is has_extra(kind)
    if not names:
        assert f"tests/{KINDS[kind].source}/open_house" in tox
        return
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(tox.partition("  sections\n")[2].replace("\n    ", "\n").lstrip())
    found = {
        f"open_house-{factor}"
        for section in parser.sections()
        for factor in section.partition("open_house-")[2].strip("{}").split(",")
    }
    assert found == names


@pytest.mark.parametrize("kind", KINDS)
def test_the_steps_name_an_extra_where_the_plugin_registers_with_one(kind, tmp_path):
    (plugin,) = [path for path in render(kind, "open_house", tmp_path) if path.stem == "plugin"]
    assert ('extra="open-house"' in plugin.read_text()) is has_extra(kind)
    for text in (steps(kind, "open_house"), *(each.read_text() for each in readmes(plugin))):
        assert ("[open-house]" in text) is has_extra(kind)


def test_the_steps_format_the_code_and_generate_the_documents():
    last = steps("store", "open_house").partition("Then run:\n")[2]
    folders = "plugins/agl_open_house tests/plugins/open_house"
    assert f"ruff check --fix {folders} && ruff format {folders}\n" in last
    assert "python docs/generate.py\n" in last
    assert "pyright plugins/agl_open_house\n" in last


def readmes(plugin):
    return plugin.parent.glob("README.md")


def test_the_steps_name_contracts_that_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    known = {each["name"]: each for each in project["tool"]["importlinter"]["contracts"]}
    for kind in KINDS.values():
        for contract in kind.layers:
            assert contract in known


def test_nothing_is_overwritten(tmp_path):
    render("integration", "mine", tmp_path)
    with pytest.raises(FileExistsError):
        render("integration", "mine", tmp_path)


@pytest.mark.parametrize("name", ["", "My", "my-framework", "1st"])
def test_a_name_that_cannot_be_imported_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="lower-case identifier"):
        render("integration", name, tmp_path)


def test_an_unknown_kind_is_refused_with_those_there_are(tmp_path):
    with pytest.raises(ValueError, match="Unknown kind 'robot': use one of integration"):
        render("robot", "mine", tmp_path)


def test_the_command_writes_into_the_repository_and_names_the_lines_to_add(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(new, "ROOT", tmp_path)
    assert new.main(["integration", "open_house"]) == 0
    printed = capsys.readouterr().out
    assert "integrations/agl_open_house/plugin.py\n" in printed
    assert 'open_house = "agl_open_house.plugin"' in printed
    assert "tests/integrations/open_house" in printed


@pytest.mark.parametrize(("arguments", "code"), [([], 2), (["robot", "mine"], 1)])
def test_a_wrong_command_line_fails_with_its_reason(arguments, code, capsys):
    assert new.main(arguments) == code
    assert capsys.readouterr().err
