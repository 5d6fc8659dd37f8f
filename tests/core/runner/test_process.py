from __future__ import annotations

import os

import pytest

from agl_core.runner._worker import gateway_environment

NAMES = (
    "OPENAI_BASE_URL",
    "OPENAI_API_KEY",
    "OPENAI_API_BASE",
    "HTTP_PROXY",
    "http_proxy",
    "ALL_PROXY",
    "all_proxy",
    "NO_PROXY",
    "no_proxy",
)


@pytest.fixture
def environment(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def current():
    return {name: os.environ[name] for name in NAMES if name in os.environ}


def test_the_variables_name_the_gateway_and_are_restored(environment):
    environment.setenv("OPENAI_API_KEY", "user's")
    environment.setenv("OPENAI_API_BASE", "https://elsewhere.example/v1")
    before = current()
    inside = []

    def fail():
        with gateway_environment("http://127.0.0.1:81", "key"):
            inside.append(current())
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fail()
    assert inside == [
        {
            "OPENAI_BASE_URL": "http://127.0.0.1:81/v1",
            "OPENAI_API_KEY": "key",
            "OPENAI_API_BASE": "http://127.0.0.1:81/v1",
        }
    ]
    assert current() == before


@pytest.mark.parametrize("given", [(), ("NO_PROXY",), ("no_proxy",), ("NO_PROXY", "no_proxy")])
def test_a_proxy_is_passed_by_and_the_users_own_exceptions_stay(environment, given):
    environment.setenv("HTTP_PROXY", "http://proxy.example:3128")
    for name in given:
        environment.setenv(name, "intranet.example")
    before = current()
    expected = "intranet.example,127.0.0.1" if given else "127.0.0.1"
    with gateway_environment("http://127.0.0.1:81", "key"):
        assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == expected
    assert current() == before


def test_what_the_users_program_sets_meanwhile_stays(environment):
    """C1: nothing of a run's is left, and nothing of the user's is lost."""
    environment.setenv("OPENAI_API_KEY", "user's")
    with gateway_environment("http://127.0.0.1:81", "key"):
        os.environ["OPENAI_API_KEY"] = "user's new one"
        del os.environ["OPENAI_BASE_URL"]
    assert current() == {"OPENAI_API_KEY": "user's new one"}
