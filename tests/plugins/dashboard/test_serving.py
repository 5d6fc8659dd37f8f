"""Who may ask, what a page may do, and how a run's files are read."""

from __future__ import annotations

import json
import os

import pytest
from agl_dashboard._app import _changes
from agl_dashboard._history import RunFiles
from agl_dashboard._text import at_path, cut, pretty, visible

from agl_core.cli.group import CliState, cli
from tests.plugins.dashboard.world import World

RUN = "/run/alpha/-"


async def test_pages_limit_what_scripts_may_do(visit, runs):
    client = await visit(runs)
    answer = await client.get(f"{RUN}/overview")
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "unsafe-eval" not in policy
    assert "default-src 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "<script>" not in answer.text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example"])
async def test_another_name_for_this_machine_reads_nothing(visit, runs, host):
    client = await visit(runs)
    answer = await client.get(f"{RUN}/overview", headers={"host": host})
    assert answer.status_code == 403
    for known in ("localhost:8080", "127.0.0.1:1", "[::1]:8080", "LOCALHOST"):
        assert (await client.get("/runs", headers={"host": known})).status_code == 200


async def test_a_key_opens_once_by_the_address_then_by_a_cookie(visit, runs):
    client = await visit(runs, key="secret")
    assert (await client.get("/runs")).status_code == 401
    assert (await client.get("/runs?key=wrong")).status_code == 401
    bearer = {"authorization": "Bearer secret"}
    assert (await client.get("/runs", headers=bearer)).status_code == 200
    answer = await client.get("/runs?sort=time&key=secret")
    assert answer.headers["location"] == "/runs?sort=time"
    assert "HttpOnly; SameSite=Strict" in answer.headers["set-cookie"]
    assert (await client.get("/runs")).status_code == 200
    answer = await client.get("http://localhost//evil.example/?key=secret")
    assert answer.headers["location"] == "/evil.example/"


async def test_a_stream_says_what_changed_since_a_version(visit, tmp_path):
    world = await World(tmp_path / "live").open()
    client = await visit(tmp_path)
    source = client.sources.get("live")
    await source.look()
    events = _changes(source, "from before the server was restarted")
    assert await anext(events) == b"retry: 2000\n\n"
    first = (await anext(events)).decode()
    assert f"id: {source.version}" in first
    await world.rollout(1.0)
    second = (await anext(events)).decode()
    assert json.loads(second.partition("data: ")[2])["rows"] == 1
    await events.aclose()
    await world.close()


def test_a_log_is_read_as_it_grows(tmp_path):
    world = World(tmp_path / "run")
    files = RunFiles(tmp_path / "run")
    assert files.refresh().status == "unknown"
    world.begin_log()
    world.step(1)
    world.step(2)
    history = files.refresh()
    assert (history.status, history.step, history.planned) == ("running", 2, 3)
    version = files.version
    files.refresh()
    assert files.version == version
    with (tmp_path / "run" / "log.jsonl").open("a") as log:
        log.write('no json\n{"event": "step", "report": 3}\n[]\n{"event": "st')
    assert files.refresh().damaged == 3
    world.log.close()
    world.begin_log()  # resumed after the first step
    world.step(2, reward=0.75)
    history = files.refresh()
    assert history.curve == [0.5, 0.75]
    world.finish()
    assert files.refresh().status == "finished"


def test_a_run_without_a_log_shows_its_report(tmp_path):
    report = {"steps": [{"step": 1, "steps": 1, "reward": 0.5}], "evaluations": []}
    (tmp_path / "report.json").write_text(json.dumps(report))
    history = RunFiles(tmp_path).refresh()
    assert (history.status, history.curve) == ("finished", [0.5])


def test_a_process_that_has_ended_is_seen(tmp_path):
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    event = {"event": "started", "at": 1.0, "pid": child, "host": os.uname().nodename, "steps": 3}
    (tmp_path / "log.jsonl").write_text(json.dumps(event) + "\n")
    assert RunFiles(tmp_path).refresh().status == "stopped"


def test_texts_are_made_visible_and_cut():
    assert visible("a\x00\x1b\u202eb\r\nc\td\ud800") == "a␀␛[U+202E]b\nc\td\ufffd"
    assert cut("x" * 20_000).text == "x" * 10_000
    assert cut("x" * 20_000).length == 20_000
    circle = {}
    circle["in"] = circle
    assert pretty(circle) == "{'in': {...}}"
    assert pretty('{"a": 1}') == '{\n  "a": 1\n}'
    assert at_path({"a": [{"b": "c"}]}, "a.0.b") == "c"
    assert at_path({"a": []}, "a.9") is None


def test_what_is_not_there_is_an_error(tmp_path):
    from click.testing import CliRunner

    found = CliRunner().invoke(cli, ["dashboard", str(tmp_path / "none")], obj=CliState())
    assert found.exit_code == 2
    assert "name a folder of runs" in found.output
