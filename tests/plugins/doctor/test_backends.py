"""Token ids, whether they are those of the text, and answers that were not sampled anew."""

import pytest
from agl_doctor._backends import contradiction

from agl_core.types import Choice
from tests.plugins.doctor.conftest import only, writer


def test_what_the_backend_gives_is_told(clinic) -> None:
    found = clinic.find(writer, "backend.tokens")
    assert found.severity == "ok"
    assert found.figures == {
        "policy": "trained",
        "token_ids": True,
        "stream_token_ids": True,
        "logprobs": "processed",
    }


def test_no_ids_in_streams_is_a_warning(clinic) -> None:
    clinic.options["stream_token_ids"] = False
    found = clinic.find(writer, "backend.tokens")
    assert (found.severity, found.figures["stream_token_ids"]) == ("warning", False)
    assert "stream" in found.fix


def test_ids_are_compared_with_the_text(clinic) -> None:
    found = clinic.find(writer, "tokens.decode")
    assert (found.severity, found.figures) == ("ok", {"checked": 4, "wrong": 0})


def test_text_that_its_ids_do_not_stand_for_is_an_error(clinic) -> None:
    def rewrite(payload) -> None:
        for choice in payload["choices"]:
            if "write" in (choice.get("message", {}).get("content") or ""):
                choice["message"]["content"] = "something else"

    clinic.serve().tamper = rewrite
    found = clinic.find(writer, "tokens.decode")
    assert (found.severity, found.figures) == ("error", {"checked": 4, "wrong": 4})
    assert "something else" in found.measured
    assert "'writer'" in found.measured


def test_a_backend_that_cannot_tell_is_not_called_ok(clinic) -> None:
    clinic.options["detokenize"] = False
    found = clinic.find(writer, "tokens.decode")
    assert found.severity == "not checked"
    assert "'trained'" in found.measured


CALL = {"id": "c", "type": "function", "function": {"name": "lookup", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("choice", "decoded", "stopped"),
    [
        (Choice(text="yes"), "yes", False),
        (Choice(text="yes"), "yes<|im_end|>\n", False),
        (Choice(text="yes"), "yes</s>", False),
        (Choice(text="yes"), "yes[/INST]", False),
        (Choice(text=" yes "), "yes", False),
        (Choice(text=""), "<eos>", False),
        (Choice(text="no"), "no STOP", True),
        (Choice(text="cut \ufffd"), "cut \ufffd", False),
        (Choice(text="so", reasoning="hm"), "<think>hm</think>so", False),
        (Choice(text="", tool_calls=[CALL]), '<tool_call>{"name": "lookup"}</tool_call>', False),
    ],
)
def test_an_answer_that_its_ids_stand_for(choice, decoded, stopped) -> None:
    assert contradiction(choice, decoded, stopped=stopped) == ""


@pytest.mark.parametrize(
    ("choice", "decoded"),
    [
        (Choice(text="yes"), "no"),
        (Choice(text="yes"), "yes and no"),
        (Choice(text=""), "yes"),
        (Choice(text="so", reasoning="hm"), "so"),
        (Choice(text="", tool_calls=[CALL]), "nothing"),
    ],
)
def test_an_answer_that_its_ids_do_not_stand_for(choice, decoded) -> None:
    assert contradiction(choice, decoded, stopped=False)


def test_answers_from_a_cache_are_an_error(clinic) -> None:
    def cached(payload) -> None:
        payload["id"] = "chatcmpl-cached"

    clinic.serve().tamper = cached
    found = clinic.find(writer, "backend.fresh")
    assert (found.severity, found.figures) == ("error", {"answers": 4, "repeated": 3})


def test_answers_without_ids_of_their_own_are_not_checked(clinic) -> None:
    def anonymous(payload) -> None:
        payload["id"] = ""

    clinic.serve().tamper = anonymous
    assert only(clinic.diagnose(writer), "backend.fresh").severity == "not checked"
