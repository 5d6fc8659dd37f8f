import json
from pathlib import Path

import pytest
from agl_doctor._diagnose import Diagnosis
from click.testing import CliRunner

from agl_core.cli.group import cli
from agl_core.types import Finding
from tests.core.app import bandit_plugin
from tests.installed import INSTALLED

FINDINGS = [
    Finding(check="a.fine", severity="ok", measured="All [bold]is[/bold] well."),
    Finding(check="a.dark", severity="not checked", measured="Nobody\nknows."),
    Finding(check="a.warning", severity="warning", measured="Hm.", fix="Look."),
    Finding(
        check="a.error",
        severity="error",
        measured="Broken.",
        fix="Mend it.",
        figures={"traceback": "Traceback: at line 7"},
    ),
]


@pytest.fixture
def trial(monkeypatch):
    """Stands in for the diagnosis; the test says what it found."""
    found = list(FINDINGS)
    asked = []

    class App:
        def __init__(self, config, *, plugins):
            self.config = config

    async def diagnose(app, *, tasks, samples):
        asked.append((app.config.name, tasks, samples))
        return Diagnosis(
            run_id=app.config.name,
            directory="agl_runs/x/doctor",
            tasks=tasks,
            samples=samples or 4,
            calls=8,
            findings=found,
            wall_s=1.5,
        )

    monkeypatch.setattr("agl_core.app.App", App)
    monkeypatch.setattr("agl_doctor._diagnose.diagnose", diagnose)
    return found, asked


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run.toml").write_text("name = 'x'\n", encoding="utf-8")
    return "run.toml"


def test_away_from_a_terminal_each_finding_is_plain_lines(agl, trial, run):
    result = agl("doctor", run)
    assert result.stdout.splitlines() == [
        "run x: tried 2 tasks, 4 attempts each, 8 model calls, 1.5 s; nothing was trained",
        "ok           a.fine: All [bold]is[/bold] well.",
        "not checked  a.dark: Nobody knows.",
        "warning      a.warning: Hm.",
        "             fix: Look.",
        "error        a.error: Broken.",
        "             fix: Mend it.",
        "1 ok, 1 not checked, 1 warning, 1 error",
        "records: agl trace agl_runs/x/doctor",
    ]


def test_on_a_terminal_it_is_a_table(trial, run):
    from io import StringIO

    from agl_doctor._command import show
    from rich.console import Console

    target = Console(file=StringIO(), force_terminal=True, width=80, color_system=None)
    diagnosis = Diagnosis(run_id="x", directory="d", tasks=1, samples=2, calls=0, findings=FINDINGS)
    show(target, diagnosis, tracebacks=False)
    text = target.file.getvalue()
    assert "measured" in text
    assert "fix: Mend it." in text
    assert "All [bold]is[/bold] well." in text


@pytest.mark.parametrize(("left", "status"), [(4, 1), (3, 0), (1, 0), (0, 0)])
def test_the_exit_status_says_whether_anything_is_an_error(agl, trial, run, left, status):
    found, _ = trial
    del found[left:]
    assert agl("doctor", run).exit_code == status


def test_what_is_tried_can_be_said(agl, trial, run):
    _, asked = trial
    agl("doctor", run, "--tasks", "5", "--samples", "3", "--set", "name=y")
    agl("doctor", run)
    assert asked == [("y", 5, 3), ("x", 2, None)]


@pytest.mark.parametrize("wrong", [["--tasks", "0"], ["--samples", "1"], ["--set", "nmae=x"]])
def test_wrong_usage_and_configuration_are_2(agl, trial, run, wrong):
    assert agl("doctor", run, *wrong).exit_code == 2


def test_the_findings_are_written_as_json(agl, trial, run, tmp_path):
    agl("doctor", run, "--json", "out.json")
    written = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert [f["severity"] for f in written["findings"]] == [f.severity for f in FINDINGS]
    assert written["findings"][3]["fix"] == "Mend it."
    assert (written["tasks"], written["calls"]) == (2, 8)


def test_json_on_standard_output_stands_alone(agl, trial, run):
    result = agl("doctor", run, "--json", "-")
    assert json.loads(result.stdout)["run_id"] == "x"
    assert "a.error: Broken." in result.stderr


def test_tracebacks_are_shown_when_asked_for(agl, trial, run):
    assert "at line 7" not in agl("doctor", run).stdout
    assert "at line 7" in agl("doctor", run, "--debug").stdout


AGENT = """
import httpx
import agl_core as agl

async def agent(task):
    llm = agl.current().llm
    with agl.agent_scope("writer"):
        async with httpx.AsyncClient(verify=False, timeout=600) as client:
            answer = await client.post(
                f"{llm.base_url}/chat/completions",
                headers={"authorization": f"Bearer {llm.api_key}"},
                json={"model": "any", "messages": [{"role": "user", "content": f"{task.id}"}]},
            )
    return answer.json()["choices"][0]["message"]["content"]

def tasks():
    return [{"input": 1}, {"input": 2}]

def reward(task, output, attempt):
    return float(attempt.rollout.metadata["sample"])
"""


def test_a_file_is_tried_from_end_to_end(tmp_path, monkeypatch):
    """With the real application and the hand-sized engine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", INSTALLED)
    plugin = Path(bandit_plugin.__file__)
    (tmp_path / "agent.py").write_text(AGENT, encoding="utf-8")
    (tmp_path / "run.toml").write_text(
        f"""
agent = "agent.py:agent"
agents = ["writer"]
model = "any"
plugins = ['{plugin}']
tasks = {{ train = "agent.py:tasks" }}
rewards = [{{ name = "agent.py:reward" }}]
engine = {{ name = "bandit" }}
""",
        encoding="utf-8",
    )
    runner = CliRunner()
    fine = runner.invoke(cli, ["doctor", "run.toml", "--json", "fine.json"])
    assert fine.exit_code == 0, fine.output
    written = json.loads((tmp_path / "fine.json").read_text(encoding="utf-8"))
    severities = {f["check"]: f["severity"] for f in written["findings"]}
    assert severities["tokens.decode"] == "not checked"
    assert severities["rewards.vary"] == "ok"
    assert (tmp_path / "agl_runs" / "run" / "doctor" / "store.db").is_file()
    broken = runner.invoke(cli, ["doctor", "run.toml", "--set", 'agents=["wirter"]'])
    assert broken.exit_code == 1
    assert "agents seen: ['writer']" in broken.output
    assert runner.invoke(cli, ["doctor", "run.toml", "--set", "agents=[]"]).exit_code == 2
