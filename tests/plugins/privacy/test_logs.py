"""Logs are masked by default, those of other programs only on request."""

import io
import logging
from collections.abc import Iterator

import pytest
from agl_privacy import Masker, MaskOptions, mask_logs
from agl_privacy._logs import VARIABLE, MaskingFactory, masked_logs, masking

from agl_core.app import load_plugins
from agl_core.config import resolve

MAIL = "john@example.com"


@pytest.fixture(autouse=True)
def logs() -> Iterator[io.StringIO]:
    """What a handler of the user at the root prints, with a factory of its own."""
    stream, before = io.StringIO(), logging.getLogRecordFactory()
    logging.setLogRecordFactory(MaskingFactory(logging.LogRecord))
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(name)s %(message)s"))
    logging.getLogger().addHandler(handler)
    yield stream
    logging.getLogger().removeHandler(handler)
    logging.setLogRecordFactory(before)


def warn(name: str, *args: object, **kwargs: object) -> None:
    logging.getLogger(name).warning(*args, **kwargs)


@pytest.mark.parametrize("name", ["agl_core.training.groups", "agl_torch", "agl_mine.x"])
def test_agl_logs_are_masked_for_every_handler(name: str, logs: io.StringIO) -> None:
    warn(name, "mail %s from %s", MAIL, "192.168.1.1")
    warn(name, MAIL)
    warn(name, "nothing %d", 3)
    assert logs.getvalue() == (
        f"{name} mail j***@e*****e.com from 192.***.*.1\n{name} j***@e*****e.com\n"
        f"{name} nothing 3\n"
    )


@pytest.mark.parametrize("name", ["my.program", "root", "aglx"])
def test_other_logs_stay_as_they_are(name: str, logs: io.StringIO) -> None:
    warn(name, "mail %s", MAIL)
    assert logs.getvalue() == f"{name} mail {MAIL}\n"


def test_tracebacks_are_masked_with_their_causes(logs: io.StringIO) -> None:
    try:
        try:
            {}[MAIL]
        except KeyError as error:
            raise ValueError("+49 170 1234567") from error
    except ValueError:
        warn("agl_core", "failed", exc_info=True, stack_info=True)
    text = logs.getvalue()
    assert "KeyError: 'j***@e*****e.com'" in text
    assert "ValueError: +** *** *******" in text
    assert "direct cause" in text


def test_a_record_without_personal_data_keeps_arguments_and_exception() -> None:
    factory = MaskingFactory(logging.LogRecord)
    error = (ValueError, ValueError("x"), None)
    record = factory("agl_core", 30, "f", 1, "step %d of %s", (3, "y"), error)
    assert (record.msg, record.args, record.exc_info) == ("step %d of %s", (3, "y"), error)
    assert factory("agl_core", 30, "f", 1, "\x00\ud800%s", (MAIL,), None).msg.startswith(
        "\x00\ud800j*"
    )
    hidden = factory("agl_core", 30, "f", 1, "%.1s", (MAIL,), None)
    assert (hidden.getMessage(), hidden.args) == ("j", None)


def test_wrong_arguments_and_failing_texts_do_not_raise(logs: io.StringIO) -> None:
    class Broken:
        def __str__(self) -> str:
            raise ValueError(MAIL)

        __repr__ = __str__

    warn("agl_core", "one %s two %s", MAIL)
    warn("agl_core", Broken())
    text = logs.getvalue()
    assert MAIL not in text
    assert "one %s two %s ('j***@e*****e.com',)" in text
    assert "a record that cannot be masked: ValueError" in text


def test_loggers_of_programs_are_masked_on_request(logs: io.StringIO) -> None:
    mask_logs("my", options=MaskOptions(names=["Anna"], email=False))
    mask_logs("my.open", enabled=False)
    for name in ("my", "my.part", "my.open.part", "mine"):
        warn(name, "Anna %s", MAIL)
    assert logs.getvalue() == (
        f"my A**a {MAIL}\nmy.part A**a {MAIL}\nmy.open.part Anna {MAIL}\nmine Anna {MAIL}\n"
    )
    mask_logs("")
    warn("mine", MAIL)
    assert logs.getvalue().endswith("mine j***@e*****e.com\n")


async def test_the_section_counts_in_a_runner_of_another_process(logs: io.StringIO) -> None:
    config = resolve({"privacy": {"names": ["Anna"], "email": False}})
    plugins = load_plugins()
    observer = plugins.registry("observers").create("privacy.runner", config, plugins)
    async with observer.following():
        warn("agl_core", "Anna %s", MAIL)
    warn("agl_core", "Anna %s", MAIL)
    assert logs.getvalue() == f"agl_core A**a {MAIL}\nagl_core Anna j***@e*****e.com\n"
    assert observer.losses.counts == {}


def test_masking_is_switched_off_for_a_time(logs: io.StringIO) -> None:
    with masked_logs(None):
        warn("agl_core", MAIL)
    with masked_logs(Masker(MaskOptions(names=["Anna"]))):
        warn("agl_core", "Anna")
    warn("agl_core", "Anna %s", MAIL)
    mask_logs(enabled=False)
    warn("agl_core", MAIL)
    assert logs.getvalue() == (
        f"agl_core {MAIL}\nagl_core A**a\nagl_core Anna j***@e*****e.com\nagl_core {MAIL}\n"
    )


@pytest.mark.parametrize(
    ("value", "masked"),
    [
        ("off", f"{MAIL} 10.1.2.3"),
        ("False", f"{MAIL} 10.1.2.3"),
        ("address", f"{MAIL} 10.*.*.3"),
        (" Email, phone", "j***@e*****e.com 10.1.2.3"),
        ("on", "j***@e*****e.com 10.*.*.3"),
        ("sometimes", "j***@e*****e.com 10.*.*.3"),
    ],
)
def test_a_variable_chooses_the_kinds(
    value: str, masked: str, logs: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    warn("agl_core", "%s 10.1.2.3", MAIL)
    assert logs.getvalue() == f"agl_core {masked}\n"


def test_it_is_installed_once_over_a_factory_of_the_user() -> None:
    class Mine(logging.LogRecord):
        pass

    logging.setLogRecordFactory(Mine)
    assert masking() is masking()
    assert isinstance(masking()("agl_core", 30, "f", 1, MAIL, None, None), Mine)


def chatty(text: str) -> list[tuple[int, int]]:
    warn("library.of.a.recogniser", "reads %s", text)
    return [(0, 4)] if text.startswith("Erna") else []


def test_a_recogniser_may_log_while_a_record_is_masked(logs: io.StringIO) -> None:
    mask_logs("", options=MaskOptions(recognizers=[f"{__name__}:chatty"]))
    warn("mine", "Erna was here")
    assert "Erna" not in logs.getvalue()
    assert logs.getvalue().startswith(
        "library.of.a.recogniser (a record from inside a recogniser)\n"
    )
    assert logs.getvalue().endswith("mine E**a was here\n")
