"""A real server that speaks S3: runs, interrupted uploads, outages, rights, tasks and commands."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agl_storage._local import folder_unit
from agl_storage._manifest import StorageError
from agl_storage._remote import Remote
from click.testing import CliRunner

from agl_core.app import load_plugins
from agl_core.app.parts import make_tasks
from agl_core.cli.group import CliState, cli
from agl_core.config import TasksConfig
from agl_core.errors import ConfigError
from tests.core.app.conftest import Bench
from tests.core.bandit_engine import BanditEngine
from tests.plugins.storage.s3_server import S3Server

PART_BYTES = 5 * 2**20
"""Smallest part that S3 takes."""
UPLOAD = """\
import sys
from pathlib import Path

import s3fs
from agl_storage._local import folder_unit
from agl_storage._remote import Remote

put_file = s3fs.S3FileSystem._put_file


async def in_parts(self, *args, **kwargs):
    await put_file(self, *args, **{**kwargs, "chunksize": int(sys.argv[4])})


s3fs.S3FileSystem._put_file = in_parts
options = {"endpoint_url": sys.argv[3], "client_kwargs": {"region_name": ""}}
Remote(sys.argv[1], options).put(folder_unit(Path(sys.argv[2]), "checkpoints/step-000009"))
"""


def until(happened: Callable[[], Any]) -> Any:
    waited = threading.Event()
    for _ in range(1_200):
        if found := happened():
            return found
        waited.wait(0.05)
    raise AssertionError("it did not happen within 60 s")


def section(server: S3Server, bucket: str, **more: Any) -> dict[str, Any]:
    return {"url": f"s3://{bucket}/my runs", "options": server.options, **more}


def names(server: S3Server, bucket: str) -> set[str]:
    found = server.files().find(f"{bucket}/my runs/bench/checkpoints")
    return {path.split("/")[4] for path in found}


def test_a_run_continues_on_another_machine(
    bench: Bench, server: S3Server, bucket: str, tmp_path: Path
) -> None:
    whole = Bench(tmp_path / "whole").train(train__steps=4)
    bench.sections["storage"] = section(server, bucket)
    bench.train(train__steps=2)
    server.files().pipe_file(f"{bucket}/my runs/bench2/checkpoints/step-000099/x", b"another run")
    assert names(server, bucket) == {"step-000001", "step-000002"}
    other = Bench(tmp_path / "elsewhere")
    other.sections = dict(bench.sections)

    report = other.train(train__steps=4, train__resume=True)

    assert len(other.engine.batches) == 2
    after = report.policies["trained"]["sha256_after"]
    assert after == whole.policies["trained"]["sha256_after"]
    assert names(server, bucket) == {"step-000003", "step-000004"}
    assert not [cause for cause in report.lost if cause.startswith("storage")]
    stored = json.loads(server.files().cat_file(f"{bucket}/my runs/bench/report.json"))
    assert stored["policies"]["trained"]["sha256_after"] == after


def test_a_process_killed_in_mid_upload_leaves_no_checkpoint(
    bench: Bench, server: S3Server, bucket: str, tmp_path: Path
) -> None:
    run = f"s3://{bucket}/my runs/bench"
    (tmp_path / "large").mkdir()
    with (tmp_path / "large" / "weights").open("wb") as file:
        file.truncate(40 * PART_BYTES)
    endpoint = server.options["endpoint_url"]
    arguments = [run, str(tmp_path / "large"), endpoint, str(PART_BYTES)]
    process = subprocess.Popen([sys.executable, "-c", UPLOAD, *arguments])
    files = server.files()
    until(lambda: files.list_multipart_uploads(bucket))
    process.kill()
    process.wait()
    assert files.list_multipart_uploads(bucket)
    foreign = files.call_s3("create_multipart_upload", Bucket=bucket, Key="foreign")
    files.pipe_file(f"{bucket}/my runs/bench/checkpoints/step-000009/other", b"uploaded before")

    bench.sections["storage"] = section(server, bucket)
    report = bench.train(train__resume=True)

    assert len(report.steps) == 2
    assert names(server, bucket) == {"step-000001", "step-000002"}
    left = files.list_multipart_uploads(bucket)
    assert [upload["UploadId"] for upload in left] == [foreign["UploadId"]]


def test_an_error_inside_an_upload_leaves_no_file(
    server: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    (tmp_path / "large").mkdir()
    with (tmp_path / "large" / "weights").open("wb") as file:
        file.truncate(3 * PART_BYTES)
    call, put_file = s3fs.S3FileSystem._call_s3, s3fs.S3FileSystem._put_file

    async def in_parts(self: Any, *args: Any, **kwargs: Any) -> None:
        await put_file(self, *args, **{**kwargs, "chunksize": PART_BYTES})

    monkeypatch.setattr(s3fs.S3FileSystem, "_put_file", in_parts)

    async def failing(self: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        if method == "upload_part" and kwargs["PartNumber"] == 2:
            raise OSError("the planted error")
        return await call(self, method, *args, **kwargs)

    remote = Remote(f"s3://{bucket}/x", server.options)
    unit = folder_unit(tmp_path / "large", "part")
    with monkeypatch.context() as patch:
        patch.setattr(s3fs.S3FileSystem, "_call_s3", failing)
        with pytest.raises(StorageError, match="the planted error"):
            remote.put(unit)
    remote.clear_uploads()
    assert server.files().find(bucket) == []
    assert server.files().list_multipart_uploads(bucket) == []
    remote.put(unit)
    fetched = tmp_path / "fetched"
    remote.below("part").fetch(remote.below("part").manifest(), fetched)
    assert (fetched / "weights").stat().st_size == 3 * PART_BYTES


def test_a_bucket_that_is_not_there_is_named(bench: Bench, server: S3Server) -> None:
    bench.sections["storage"] = section(server, "no-such-bucket")
    with pytest.raises(ConfigError, match=r"s3://no-such-bucket.*no such bucket") as caught:
        bench.train()
    assert "\n" not in str(caught.value)
    assert not server.files().exists("no-such-bucket")
    assert not bench.engine.backends


def test_rights_are_checked_before_the_run(bench: Bench, tmp_path: Path) -> None:
    server = S3Server(tmp_path / "log", INITIAL_NO_AUTH_ACTION_COUNT="1")
    server.start()
    try:
        server.files().call_s3("create_bucket", Bucket="mine")
        bench.sections["storage"] = section(server, "mine")
        with pytest.raises(ConfigError, match=r"s3://mine.*it refuses.*the right to"):
            bench.train()
    finally:
        server.stop()
    assert not bench.engine.backends


def test_a_server_that_is_down_is_named_before_the_run(bench: Bench, tmp_path: Path) -> None:
    bench.sections["storage"] = section(S3Server(tmp_path / "log"), "mine", timeout_s=60)
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:\d+|does not answer"):
        bench.train()
    bench.sections["storage"] |= {"timeout_s": 0.01}
    with pytest.raises(ConfigError, match=r"'s3://mine/my runs'.* within 0\.01 s"):
        bench.train()


def test_a_server_that_stops_in_mid_run_does_not_stop_it(bench: Bench, own: S3Server) -> None:
    class Stopping(BanditEngine):
        async def update(self, batch: Any) -> Any:
            if batch.step == 1:
                own.stop()
            return await super().update(batch)

    own.files().mkdir("mine")
    bench.engine_class = Stopping
    bench.sections["storage"] = section(own, "mine", flush_s=0.5)
    report = bench.train()
    assert len(report.steps) == 2
    assert report.lost["storage_not_mirrored"] >= 1


@pytest.fixture
def task_file(server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.options["endpoint_url"])
    server.files().pipe_file(f"{bucket}/a set/t.jsonl", b'{"input": 1}\n{"input": 2}\n')
    server.files().pipe_file(f"{bucket}/a set/t.csv", b"input\n3\n")
    server.files().pipe_file(f"{bucket}/a set/bad.jsonl", b"1\n{\n")
    server.files().pipe_file(f"{bucket}/a set/t.xlsx", b"1")
    return f"s3://{bucket}/a set"


def tasks(source: str) -> list[Any]:
    found = make_tasks(None, TasksConfig(train=source), "train", load_plugins())
    return [task.input for task in found]


def test_tasks_come_from_s3_and_the_web(task_file: str, server: S3Server) -> None:
    assert tasks(f"{task_file}/t.jsonl") == [1, 2]
    assert tasks(f"{task_file}/t.csv") == ["3"]
    signed = server.files().sign(f"{task_file.removeprefix('s3://')}/t.jsonl")
    assert signed.startswith("http://")
    assert tasks(f"{signed}&more=a/b") == [1, 2]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("none.jsonl", r"none\.jsonl' cannot be fetched\..*no such"),
        ("bad.jsonl", r"s3://.*bad\.jsonl', row 2 is not JSON"),
        ("t.xlsx", r"t\.xlsx' is no file of rows"),
        ("", "names no file"),
    ],
)
def test_tasks_that_cannot_be_read_are_named(task_file: str, name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        tasks(f"{task_file}/{name}")


def test_a_scheme_without_its_library_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match="huggingface_hub"):
        tasks("hf://datasets/a/b/t.jsonl")


def run_cli(*arguments: str) -> Any:
    answer = CliRunner().invoke(cli, ["storage", *arguments], obj=CliState())
    assert answer.exit_code == 0, answer.output
    return answer


def refused(*arguments: str) -> str:
    answer = CliRunner().invoke(cli, ["storage", *arguments], obj=CliState())
    assert answer.exit_code == 2
    return " ".join(answer.output.split())


def test_commands_list_fetch_and_store(
    bench: Bench, server: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.options["endpoint_url"])
    bench.sections["storage"] = section(server, bucket)
    report = bench.train()
    url = f"s3://{bucket}/my runs"
    files = server.files()

    listed = run_cli("ls", url).output.splitlines()
    assert [line.split("  ")[0] for line in listed] == [
        "bench",
        "bench/checkpoints/step-000001",
        "bench/checkpoints/step-000002",
    ]
    assert all(line.endswith("  whole") for line in listed)

    pulled = tmp_path / "pulled"
    assert "step-000001" not in run_cli("pull", url, str(pulled), "--newest").output
    best = Path(report.best or "")
    for file in ("state.json", "policies/trained/logits.json"):
        fetched = pulled / "bench/checkpoints/step-000002" / file
        assert fetched.read_bytes() == (best / file).read_bytes()
    assert (pulled / "bench/report.json").is_file()
    assert (pulled / "bench/config.json").is_file()
    assert "is not empty" in refused("pull", url, str(pulled))

    again = f"s3://{bucket}/again"
    run_cli("push", str(bench.directory / "bench"), again)
    whole = {path.partition("/bench/")[2] for path in files.find(f"{bucket}/my runs/bench")}
    pushed = {path.partition("/again/")[2] for path in files.find(f"{bucket}/again")}
    assert pushed == whole - {"owner.json"}
    assert "step" not in run_cli("push", str(bench.directory / "bench"), again).output

    files.rm_file(f"{bucket}/again/checkpoints/step-000001/manifest.json")
    files.pipe_file(f"{bucket}/again/checkpoints/step-000002/state.json", b"{}")
    states = [line.rpartition("  ")[2] for line in run_cli("ls", again).output.splitlines()]
    assert states[0] == "whole"
    assert "did not end" in states[1]
    assert states[2] == "damaged: state.json"
    message = refused("pull", again, str(tmp_path / "damaged"))
    assert re.search(r"step-000002: state\.json has 2 bytes.*step-000001: it has no", message)
    assert not (tmp_path / "damaged/checkpoints/step-000002").exists()
    assert "nothing in" in refused("ls", f"s3://{bucket}/nothing")
    assert "no address" in refused("ls", "nothing")
    assert "KEY=VALUE" in refused("ls", url, "--option", "x")


def test_an_export_is_stored(bench: Bench, server: S3Server, bucket: str, tmp_path: Path) -> None:
    bench.sections["storage"] = section(server, bucket)
    bench.train()
    (tmp_path / "out").mkdir()
    run = str(bench.directory / "bench")
    arguments = ["export", run, str(tmp_path / "out" / "weights"), "--storage"]

    answer = CliRunner().invoke(cli, arguments, obj=CliState(), catch_exceptions=False)

    assert f"s3://{bucket}/my runs/bench/exports/weights" in answer.output
    stored = server.files().find(f"{bucket}/my runs/bench/exports/weights")
    assert {path.rpartition("/")[2] for path in stored} >= {"manifest.json", "logits.json"}
