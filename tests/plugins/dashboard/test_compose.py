"""``compose.yaml``: the commands of its services train a run, as processes of this machine."""

import json
import re
import urllib.request
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from agl_core.config.text import read_config
from tests.e2e.processes import KEY, Process, free_ports, settings
from tests.installed import INSTALLED

ROOT = Path(__file__).parents[3]
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")
DISABLED = ",".join(name for name in INSTALLED.split(",") if name != "dashboard")


def services(given, replaced=()):
    """Return the services as Compose reads them, with variables, and with texts replaced."""

    def value(match):
        name, sign, text = match.groups()
        assert name in given or sign == "-", f"{name} is needed"
        return given.get(name) or (text if sign == "-" else "")

    def filled(tree):
        if isinstance(tree, dict):
            return {key: filled(each) for key, each in tree.items()}
        if isinstance(tree, list):
            return [filled(each) for each in tree]
        text = VARIABLE.sub(value, tree) if isinstance(tree, str) else tree
        for old, new in replaced if isinstance(tree, str) else ():
            text = text.replace(old, new)
        return text

    return filled(YAML(typ="safe", pure=True).load(ROOT / "compose.yaml")["services"])


def test_every_process_has_the_key_of_the_run_except_the_dashboard():
    keys = {
        name: service["environment"]["AGL_API_KEY"]
        for name, service in services({"AGL_API_KEY": KEY}).items()
    }

    assert keys.pop("dashboard") == ""
    assert keys == dict.fromkeys(("store", "gateway", "trainer", "runner"), KEY)
    with pytest.raises(AssertionError, match="AGL_API_KEY is needed"):
        services({})


def test_the_image_has_what_the_services_need():
    steps = (ROOT / "Dockerfile").read_text()
    extras = re.search(r"^ARG EXTRAS=(.+)$", steps, re.MULTILINE)[1].split(",")
    known = read_config(ROOT / "pyproject.toml")["project"]["optional-dependencies"]

    assert {"dashboard", "torch"} <= set(extras) <= set(known)
    assert 'ENTRYPOINT ["agl"]' in steps
    copied = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_commands_train_a_run_that_the_dashboard_shows(tmp_path):
    config = settings(tmp_path)
    store, gateway, page = free_ports(3)
    replaced = [("/runs", str(tmp_path / "runs")), ("0.0.0.0", "127.0.0.1")]
    replaced += [("8701", str(store)), ("8702", str(gateway)), ("8080", str(page))]
    replaced += [(f"//{name}:", "//127.0.0.1:") for name in ("store", "gateway")]
    replaced += [("backend_host=trainer", "backend_host=127.0.0.1")]
    given = {"AGL_API_KEY": KEY, "AGL_CONFIG": str(config), "AGL_RUN": "shop"}
    commands = {name: found["command"] for name, found in services(given, replaced).items()}
    running = {}

    def start(name):
        log = tmp_path / f"{name}.log"
        key = "" if name == "dashboard" else KEY
        running[name] = Process(log, *commands.pop(name), key=key, disabled=DISABLED)

    try:
        start("store")
        running["store"].until_it_says("http://")
        for name in ("runner", "gateway", "trainer", "dashboard"):
            start(name)
        assert running["trainer"].popen.wait() == 0, running["trainer"].said
        running["dashboard"].until_it_says("http://")
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/run/shop/-/rollouts") as answer:
            shown = answer.read().decode()
    finally:
        for process in running.values():
            process.end()

    report = json.loads((tmp_path / "runs" / "shop" / "report.json").read_bytes())
    assert [step["step"] for step in report["steps"]] == [1, 2, 3]
    assert "succeeded" in shown
    assert not commands
