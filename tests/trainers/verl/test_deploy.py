"""What `deploy` holds: it renders, its run is valid, and its commands are ones that agl has."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import click
import pytest
from agl_verl._config import make_config
from agl_verl._options import VerlOptions
from ruamel.yaml import YAML

from agl_core._builtin import load_plugins
from agl_core.app.parts import engine_name
from agl_core.cli.group import CliState, cli
from agl_core.config.loader import check_options, load_config

ROOT = Path(__file__).parents[3]
KUBERAY = ROOT / "deploy" / "kuberay"
SUBMIT = ROOT / "deploy" / "ray" / "submit.sh"
IMAGES = ["--trainer-image", "example.org/trainer:1", "--runner-image", "example.org/runner:1"]

# Fields of KubeRay's ray.io/v1.
RAYJOB = {
    "activeDeadlineSeconds",
    "backoffLimit",
    "clusterSelector",
    "entrypoint",
    "entrypointNumCpus",
    "entrypointNumGpus",
    "entrypointResources",
    "jobId",
    "metadata",
    "rayClusterSpec",
    "runtimeEnvYAML",
    "shutdownAfterJobFinishes",
    "submissionMode",
    "submitterConfig",
    "submitterPodTemplate",
    "suspend",
    "ttlSecondsAfterFinished",
}
RAYCLUSTER = {
    "authOptions",
    "autoscalerOptions",
    "enableInTreeAutoscaling",
    "headGroupSpec",
    "rayVersion",
    "suspend",
    "workerGroupSpecs",
}
HEAD = {"headService", "rayStartParams", "serviceType", "template"}
WORKERS = {
    "groupName",
    "maxReplicas",
    "minReplicas",
    "numOfHosts",
    "rayStartParams",
    "replicas",
    "template",
}


@pytest.fixture(scope="module")
def render():
    spec = importlib.util.spec_from_file_location("agl_deploy_render", KUBERAY / "render.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path):
    """A run's folder as a user has it."""
    (tmp_path / "run.toml").write_text((KUBERAY / "run.toml").read_text())
    (tmp_path / "agent.py").write_text("def run_agent(task):\n    return '$x'\n")
    (tmp_path / "train.jsonl").write_text('{"input": "a"}\n')
    return tmp_path


@pytest.fixture
def rendered(render, folder, capsys):
    def with_options(*options):
        assert render.main([str(folder), *IMAGES, *options]) == 0
        documents = list(YAML(typ="safe", pure=True).load_all(capsys.readouterr().out))
        return {(each["kind"], each["metadata"]["name"]): each for each in documents}

    return with_options


def parsed(line):
    """The parameters of an ``agl`` command line, as click reads them."""
    assert line[0] == "agl"
    state, words, command = CliState(), list(line[1:]), cli
    context = click.Context(cli, obj=state)
    while isinstance(command, click.Group):
        command = command.get_command(context, words.pop(0))
    return command.make_context(command.name, words, parent=context).params


def pods(documents):
    """Every pod's specification, by what it is for."""
    found = {
        name: each["spec"]["template"]["spec"]
        for (kind, name), each in documents.items()
        if kind == "Deployment"
    }
    cluster = documents["RayJob", "shop"]["spec"]["rayClusterSpec"]
    found["head"] = cluster["headGroupSpec"]["template"]["spec"]
    [group] = cluster["workerGroupSpecs"]
    return {**found, "worker": group["template"]["spec"]}


def test_kuberay_knows_every_field(rendered):
    job = rendered()["RayJob", "shop"]
    assert job["apiVersion"] == "ray.io/v1"
    spec = job["spec"]
    assert set(spec) <= RAYJOB
    assert spec["submissionMode"] in ("K8sJobMode", "HTTPMode", "InteractiveMode")
    cluster = spec["rayClusterSpec"]
    assert set(cluster) <= RAYCLUSTER
    assert set(cluster["headGroupSpec"]) <= HEAD
    [group] = cluster["workerGroupSpecs"]
    assert set(group) <= WORKERS
    for params in (cluster["headGroupSpec"]["rayStartParams"], group["rayStartParams"]):
        assert all(isinstance(value, str) for value in params.values())


def test_the_numbers_go_where_they_count(rendered):
    documents = rendered("--nodes", "2", "--gpus", "4", "--runners", "3")
    [group] = documents["RayJob", "shop"]["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (2, 2, 2)
    [container] = group["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert container["resources"]["limits"]["cpu"] == "16"
    assert documents["Deployment", "shop-runner"]["spec"]["replicas"] == 3
    overrides = parsed(shlex.split(documents["RayJob", "shop"]["spec"]["entrypoint"]))["overrides"]
    assert {"verl.trainer.nnodes=2", "verl.trainer.n_gpus_per_node=4"} <= set(overrides)


@pytest.mark.filterwarnings("ignore")  # verl's and Ray's, of their own imports
def test_the_submitted_run_is_valid_and_verl_knows_its_options(rendered, folder):
    entrypoint = rendered("--nodes", "2")["RayJob", "shop"]["spec"]["entrypoint"]
    assert "gateway.backend_host=$POD_IP" in entrypoint
    given = parsed(shlex.split(entrypoint.replace("$POD_IP", "10.0.0.7")))
    assert given["file"] == "/program/run.toml"
    config = load_config(folder / "run.toml", given["overrides"])
    assert config.gateway.backend_host == "10.0.0.7"
    assert config.train.resume
    plugins = load_plugins()
    assert engine_name(config, plugins) == "verl"
    for where, section in (("engines", config.engine), ("algorithms", config.algorithm)):
        name = section.name or "verl"
        check_options(section, plugins.registry(where).options_model(name), where=where)
    options = VerlOptions.model_validate(config.engine.options)
    made = make_config(options.verl, device="cpu", model="m", setup=None, actor={})
    assert (made.trainer.nnodes, made.trainer.n_gpus_per_node) == (2, 8)


def test_every_other_command_is_one_of_agls(rendered):
    commands = {
        name: pod["containers"][0]["command"]
        for name, pod in pods(rendered()).items()
        if "command" in pod["containers"][0]
    }
    assert set(commands) == {"shop-store", "shop-gateway", "shop-runner"}
    found = {name: parsed(command) for name, command in commands.items()}
    assert found["shop-store"]["port"] == 8701
    assert found["shop-gateway"]["store"] == "http://shop-store:8701"
    assert found["shop-runner"]["config_file"] == "/program/run.toml"
    assert found["shop-runner"]["processes"] == 4


def test_everybody_finds_what_is_named(rendered):
    documents = rendered()
    config = load_config(KUBERAY / "run.toml")
    for url in (config.store.options["url"], config.gateway.url):
        host, port = url.removeprefix("http://").split(":")
        service = documents["Service", host]["spec"]
        assert service["ports"][0]["port"] == int(port)
        labels = documents["Deployment", host]["spec"]["template"]["metadata"]["labels"]
        assert service["selector"].items() <= labels.items()
        [container] = documents["Deployment", host]["spec"]["template"]["spec"]["containers"]
        assert container["ports"][0]["containerPort"] == service["ports"][0]["targetPort"]
    for (kind, _), document in documents.items():
        if kind == "Deployment":
            spec = document["spec"]
            labels = spec["template"]["metadata"]["labels"]
            assert spec["selector"]["matchLabels"].items() <= labels.items()
    for pod in pods(documents).values():
        volumes = {volume["name"]: volume for volume in pod.get("volumes", ())}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container.get("volumeMounts", ())} == set(volumes)
            keys = [each["valueFrom"] for each in container["env"] if each["name"] == "AGL_API_KEY"]
            assert keys == [{"secretKeyRef": {"name": "agl", "key": "key"}}]
        for volume in volumes.values():
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            assert claim is None or ("PersistentVolumeClaim", claim) in documents
            program = volume.get("configMap", {}).get("name")
            assert program is None or ("ConfigMap", program) in documents


def test_the_program_goes_along_as_it_is(rendered, folder):
    data = rendered()["ConfigMap", "shop-program"]["data"]
    assert data == {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"http://shop-store:8701"', '"http://127.0.0.1:8701"', "store.url is 'http://127.0.0.1"),
        ("local = false", "local = true", "rollout.local is True, but has to be False"),
        ('"/agl_runs"', '"runs"', "directory is 'runs', but has to be '/agl_runs'"),
        ('name = "shop"', 'name = "The Shop"', "name = 'The Shop' in run.toml cannot name"),
        ("[train]", "[tarin]", "tarin"),
    ],
)
def test_a_run_that_means_another_place_is_refused(render, folder, capsys, old, new, message):
    file = folder / "run.toml"
    file.write_text(file.read_text().replace(old, new, 1))
    assert render.main([str(folder), *IMAGES]) == 2
    told = capsys.readouterr()
    assert message in told.err
    assert told.out == ""


def test_a_folder_that_no_configmap_takes_is_refused(render, folder, capsys):
    (folder / "train.jsonl").write_text("x" * (1024 * 1024 + 1))
    assert render.main([str(folder), *IMAGES]) == 2
    assert "a ConfigMap takes 1048576: put large files" in capsys.readouterr().err


def test_another_run_has_other_services(render, folder, capsys):
    file = folder / "run.toml"
    file.write_text(file.read_text().replace("shop", "store2"))
    assert render.main([str(folder), *IMAGES]) == 0
    assert "shop" not in capsys.readouterr().out


def test_the_section_of_a_local_plugin_is_known(render, folder, capsys):
    (folder / "night.py").write_text(
        "import agl_core as agl\n\n\n@agl.hookimpl\ndef agl_register_observers(register):\n"
        "    register('night', 'night:Night')\n"
    )
    run = folder / "run.toml"
    given = run.read_text()
    run.write_text(f"{given}\n[night]\n")
    assert render.main([str(folder), *IMAGES]) == 2
    assert "unknown key 'night'" in capsys.readouterr().err

    run.write_text(f"plugins = ['night.py']\n{given}\n[night]\n")
    assert render.main([str(folder), *IMAGES]) == 0


@pytest.fixture
def submitted(tmp_path):
    """Runs the script with a ``ray`` that writes down what it is told."""
    program = tmp_path / "bin" / "ray"
    program.parent.mkdir()
    told = tmp_path / "told.json"
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\n"
        f"open({str(told)!r}, 'w').write(json.dumps(sys.argv[1:]))\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    path = os.pathsep.join(
        [str(program.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    )

    def run(*arguments, **environment):
        done = subprocess.run(
            ["bash", str(SUBMIT), *arguments],
            env={"PATH": path, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        return done, json.loads(told.read_text()) if told.exists() else None

    return run


@pytest.mark.filterwarnings("ignore")
def test_submit_hands_the_run_to_ray(submitted, folder):
    from ray.dashboard.modules.job.cli import submit

    done, told = submitted(str(folder), "--set", "train.steps=3", AGL_API_KEY='k"1')
    assert done.returncode == 0, done.stderr
    assert told[:2] == ["job", "submit"]
    given = submit.make_context("submit", told[2:]).params
    assert given["working_dir"] == str(folder)
    assert json.loads(given["runtime_env_json"]) == {"env_vars": {"AGL_API_KEY": 'k"1'}}
    line = parsed(list(given["entrypoint"]))
    assert line["file"] == "run.toml"
    assert load_config(folder / "run.toml", line["overrides"]).train.steps == 3


def test_submit_sends_no_key_that_is_not_set(submitted, folder):
    _, told = submitted(str(folder))
    assert json.loads(told[told.index("--runtime-env-json") + 1]) == {"env_vars": {}}


def test_submit_wants_a_run(submitted, tmp_path):
    done, told = submitted(str(tmp_path / "nowhere"))
    assert done.returncode == 2
    assert "There is no" in done.stderr
    assert told is None
