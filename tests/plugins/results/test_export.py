"""``agl export``: files of what was learned."""

from __future__ import annotations

import pytest

from agl_core.types import PromptTemplate
from tests.plugins.results.conftest import captured
from tests.trainers.prompts.fakes import TEXT
from tests.trainers.prompts.runs import KIND, LONGER


def texts(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes().decode()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_each_tuned_prompt_is_a_file_to_paste_back(agl, run, tmp_path):
    run.checkpoint(
        0,
        writer=captured(f"{KIND}\r\n"),
        search=captured("Finds goods.", known="Searches.", agents=("writer*",), tool="search"),
        greeting=PromptTemplate(template="Hi {name}", agents=("host",)),
        note=PromptTemplate(template="untuned"),
    )
    result = agl("export", "shop", "--prompts", "out")
    assert result.exit_code == 0, result.output
    assert texts(tmp_path / "out") == {
        "writer.txt": f"{KIND}\r\n",
        "replaced/writer.txt": TEXT,
        "search.txt": "Finds goods.",
        "replaced/search.txt": "Searches.",
        "greeting.txt": "Hi {name}",
    }
    replaced = "out/replaced/search.txt"
    assert result.output.splitlines() == [
        "out/writer.txt: the system prompt of writer, in place of out/replaced/writer.txt",
        f"out/search.txt: the description of tool 'search' of writer*, in place of {replaced}",
        "out/greeting.txt: read by agl.resource('greeting')",
    ]


def test_the_best_checkpoint_is_exported(agl, run, tmp_path):
    best = run.checkpoint(3, writer=captured(LONGER))
    newest = run.checkpoint(5, writer=captured(KIND))
    agl("export", "shop", "--prompts", "newest")  # the run has not ended
    run.report(f"checkpoints/{best.name}")
    agl("export", run.directory, "--prompts", "best")
    agl("export", newest, "--prompts", "named")
    found = {name: texts(tmp_path / name)["writer.txt"] for name in ("newest", "best", "named")}
    assert found == {"newest": KIND, "best": LONGER, "named": KIND}


def test_no_other_text_is_overwritten(agl, run, tmp_path):
    run.checkpoint(0, writer=captured(KIND))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "writer.txt").write_text("mine")
    result = agl("export", "shop", "--prompts", "out")
    assert result.exit_code == 2
    assert "out/writer.txt exist with other texts" in result.output
    assert texts(tmp_path / "out") == {"writer.txt": "mine"}
    assert agl("export", "shop", "--prompts", "out", "--force").exit_code == 0
    assert texts(tmp_path / "out")["writer.txt"] == KIND
    assert agl("export", "shop", "--prompts", "out").exit_code == 0, "equal files are no conflict"


def test_a_name_that_is_no_file_name_is_encoded(agl, run, tmp_path):
    run.checkpoint(0, **{"a/../b": captured("x"), "é": captured("y\ud800")})
    assert agl("export", "shop", "--prompts", "out").exit_code == 0
    assert {"a%2F..%2Fb.txt", "%C3%A9.txt"} <= set(texts(tmp_path / "out"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("shop",), "Say what to write"),
        (("shop", "--prompts", "out"), "has no checkpoint: nothing was learned so far"),
        (("absent", "--prompts", "out"), "'absent' is not a run"),
    ],
)
def test_wrong_usage(agl, run, arguments, said):
    result = agl("export", *arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_a_checkpoint_without_tuned_prompts_and_weights_says_so(agl, run):
    run.checkpoint(0, note=PromptTemplate(template="untuned"))
    result = agl("export", "shop", "--prompts", "out")
    assert (result.exit_code, "has no tuned prompts" in result.output) == (2, True)
    result = agl("export", "shop", "weights")
    assert (result.exit_code, "holds no weights" in result.output) == (2, True)


def test_weights_are_written_by_the_engine_to_an_empty_directory(agl, run, tmp_path):
    checkpoint = run.checkpoint(1)
    (checkpoint / "policies" / "trained").mkdir(parents=True)
    (checkpoint / "policies" / "trained" / "model.bin").write_bytes(b"weights")
    result = agl("export", "shop", "out")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out" / "trained" / "model.bin").read_bytes() == b"weights"
    assert f"out: weights of {checkpoint.relative_to(tmp_path)}" in result.output
    result = agl("export", "shop", "out")
    assert (result.exit_code, "is not empty" in result.output) == (2, True)
    assert agl("export", "shop", "out", "--force").exit_code == 0
