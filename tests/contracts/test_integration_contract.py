"""Every rule of the integration contract catches an integration or program that breaks it."""

import sys
from contextlib import suppress
from pathlib import Path

import httpx
import msgspec
import pytest
from agl_testing.bench import Played
from agl_testing.integration_contract import IntegrationContract
from agl_testing.scenario import PLANNER, WRITER
from agl_testing.toy_framework import Agent
from agl_testing.toy_program import ToyProgram

from agl_core import semconv
from agl_core.tracing import active, trace
from agl_core.types import Scope, SpanKind

TEMPLATE = Path(__file__).parents[2] / "plugins" / "_template" / "integration"
sys.path.insert(0, str(TEMPLATE))
try:
    from agl_template._handler import AglTemplateListener
    from agl_template._integration import TemplateIntegration
finally:
    sys.path.remove(str(TEMPLATE))


class Good(IntegrationContract):
    """The template's integration; the cases below break one thing of it each."""

    package = "agl_template"
    frameworks = ("httpx",)
    listener = AglTemplateListener

    def integration(self):
        return Listening(self.listener)

    def program(self):
        return ToyProgram()

    def framework_state(self):
        return list(Agent.listeners)


def test_the_templates_call_has_the_models_name():
    with trace("root") as recorder:
        listener = AglTemplateListener()
        listener.started("model", "policy", run_id="1", parent_run_id=None, arguments="")
        listener.ended(run_id="1", output="", error=None, usage={})
    (call,) = [span for span in recorder.snapshot() if span.kind is SpanKind.LLM]
    assert call.attributes[semconv.GEN_AI_OPERATION_NAME] == "chat"
    assert call.attributes[semconv.GEN_AI_REQUEST_MODEL] == "policy"


class Listening(TemplateIntegration):
    def __init__(self, listener):
        super().__init__()
        self._make = listener

    def attach(self):
        super().attach()
        Agent.listeners.remove(self._listener)
        self._listener = self._make()
        Agent.listeners.append(self._listener)


def listening(listener):
    return type(listener.__name__, (Good,), {"listener": listener})


class SwapsAgents(AglTemplateListener):
    def started(self, kind, name, **ids):
        swapped = {PLANNER: WRITER, WRITER: PLANNER}
        super().started(kind, swapped.get(name, name), **ids)


class LosesCalls(AglTemplateListener):
    """Opens call scopes, but leaves no spans of them."""

    def started(self, kind, name, *, run_id, **rest):
        super().started(kind, name, run_id=run_id, **rest)
        if kind == "model" and (context := active()) is not None:
            context.recorder.update(self._open[run_id].span_id, kind=SpanKind.OPERATION)


class LeaksScopes(AglTemplateListener):
    def ended(self, *, run_id, **rest):
        run = self._open[run_id]
        if run.kind == "agent":
            run.recorder.end(run.span_id)
        else:
            super().ended(run_id=run_id, **rest)


class IgnoresTools(AglTemplateListener):
    def started(self, kind, name, **ids):
        if kind != "tool":
            super().started(kind, name, **ids)


class IgnoresInnerAgents(AglTemplateListener):
    def started(self, kind, name, *, parent_run_id, **rest):
        if kind != "agent" or parent_run_id is None:
            super().started(kind, name, parent_run_id=parent_run_id, **rest)


class LosesErrors(AglTemplateListener):
    def ended(self, *, error, **rest):
        super().ended(error=None, **rest)


class RetellsErrors(AglTemplateListener):
    """Has the text of an exception, and not the exception."""

    def ended(self, *, run_id, error, **rest):
        run = self._open[run_id]
        super().ended(run_id=run_id, error=None, **rest)
        if error is not None:
            run.recorder.end(run.span_id, status="error", error=str(error))


class LosesArguments(AglTemplateListener):
    def started(self, kind, name, *, arguments, **rest):
        super().started(kind, name, arguments="{}", **rest)


class MistakesUsage(AglTemplateListener):
    """Takes what was sampled for what was sent."""

    def ended(self, *, usage, **rest):
        swapped = dict(zip(usage, reversed(usage.values()), strict=True))
        super().ended(usage=swapped, **rest)


class LosesUsage(AglTemplateListener):
    def ended(self, *, usage, **rest):
        super().ended(usage={}, **rest)


class Raises(AglTemplateListener):
    def started(self, kind, name, **ids):
        if (context := active()) is not None:
            context.recorder.point("unguarded")
        super().started(kind, name, **ids)


class RecordsTwice(Good):
    def integration(self):
        class Twice(Listening):
            def attach(self):
                super().attach()
                Agent.listeners.append(self._make())

            def detach(self):
                super().detach()
                Agent.listeners.pop()

        return Twice(self.listener)


class GlobalIdentity(Good):
    """Keeps who speaks in one place for all tasks and threads."""

    def integration(self):
        class Global(Listening):
            latest: Scope | None = None

            def attach(self):
                super().attach()
                integration, started = self, self._listener.started

                def remember(kind, name, *, run_id, **rest):
                    started(kind, name, run_id=run_id, **rest)
                    if run_id in integration._listener._open:
                        integration.latest = integration._listener._open[run_id]

                self._listener.started = remember

            def identity(self):
                return self.latest

        return Global(self.listener)


class StaysAttached(Good):
    def integration(self):
        class Stays(Listening):
            def detach(self):
                self._listener = None

        return Stays(self.listener)


def patching(name, make):
    """A contract whose integration wraps a method of the framework."""

    class Patching(Good):
        def integration(self):
            class Patched(Listening):
                def attach(self):
                    super().attach()
                    self._original = getattr(Agent, name)
                    setattr(Agent, name, make(self._original))

                def detach(self):
                    setattr(Agent, name, self._original)
                    super().detach()

            return Patched(self.listener)

    return Patching


def mangled(run):
    def wrapped(*args, **kwargs):
        try:
            return run(*args, **kwargs)
        except Exception as error:
            raise RuntimeError("agent failed") from error

    return wrapped


def muffled(run):
    def wrapped(*args, **kwargs):
        with suppress(httpx.HTTPStatusError):
            return run(*args, **kwargs)
        raise RuntimeError("agent failed")

    return wrapped


def chatty(turns):
    def wrapped(self, text):
        return turns(self, f"{text} Think first.")

    return wrapped


def marked(send):
    def wrapped(self, body):
        endpoint = self.endpoint
        headers = {**endpoint.headers, "x-agl-agent": self.name}
        answer = httpx.post(endpoint.url, json=body, headers=headers, timeout=30)
        return answer.raise_for_status().json()["choices"][0]["message"], {}

    return wrapped


def programmed(**methods):
    program = type("Broken", (ToyProgram,), methods)
    return type("Programmed", (Good,), {"program": lambda _: program()})


RULES = [
    ("the_skeleton_is_that_of_every_framework", listening(SwapsAgents)),
    ("the_skeleton_is_that_of_every_framework", listening(IgnoresTools)),
    ("the_skeleton_is_that_of_every_framework", listening(LeaksScopes)),
    ("the_skeleton_is_that_of_every_framework", RecordsTwice),
    ("one_span_per_call_with_the_right_agent_and_parent", listening(SwapsAgents)),
    ("one_span_per_call_with_the_right_agent_and_parent", listening(LosesCalls)),
    ("one_span_per_call_with_the_right_agent_and_parent", RecordsTwice),
    ("tools_have_arguments_and_calls_have_usage", listening(LosesArguments)),
    ("tools_have_arguments_and_calls_have_usage", listening(MistakesUsage)),
    ("tools_have_arguments_and_calls_have_usage", listening(LosesUsage)),
    (
        "tools_have_arguments_and_calls_have_usage",
        programmed(hides_usage="it does not say"),
    ),
    ("every_form_gives_equal_triplets", programmed(stream=ToyProgram.run)),
    ("every_form_gives_equal_triplets", listening(SwapsAgents)),
    ("a_request_that_is_sent_again_is_one_call", RecordsTwice),
    ("a_request_that_is_sent_again_is_one_call", listening(LosesCalls)),
    ("a_request_that_is_sent_again_is_one_call", programmed(sends_once="it does not say")),
    ("structured_output_equals_the_log", programmed(structured=lambda _, job: {"item": "coffee"})),
    ("structured_output_equals_the_log", listening(SwapsAgents)),
    ("parallel_agents_with_equal_texts_keep_their_names", GlobalIdentity),
    ("an_agent_in_a_tool_speaks_for_itself", listening(IgnoresInnerAgents)),
    ("a_model_in_a_tool_has_no_agent", listening(IgnoresTools)),
    ("selecting_the_writer_gives_only_its_calls", listening(SwapsAgents)),
    ("interleaved_rollouts_in_threads_never_mix", GlobalIdentity),
    ("interleaved_rollouts_in_tasks_never_mix", GlobalIdentity),
    ("the_exception_arrives_unchanged", patching("run", mangled)),
    ("the_exception_arrives_unchanged", listening(LosesErrors)),
    ("the_exception_arrives_unchanged", listening(RetellsErrors)),
    ("an_uncut_prompt_ends_as_an_overflow", patching("run", muffled)),
    ("a_failing_sink_never_reaches_the_agent", listening(Raises)),
    ("requests_and_output_are_the_same_with_and_without", patching("_turns", chatty)),
    ("a_captured_prompt_is_replaced_for_the_named_agent_alone", listening(SwapsAgents)),
    ("a_captured_prompt_is_replaced_for_the_named_agent_alone", programmed(stream=lambda *_: "")),
    ("attaching_twice_records_once_and_detaching_restores", RecordsTwice),
    ("attaching_twice_records_once_and_detaching_restores", StaysAttached),
    ("nothing_happens_outside_a_rollout", patching("_send", marked)),
]


@pytest.fixture(autouse=True)
def _no_listener_is_left():
    yield
    Agent.listeners.clear()


class TestTheUnbroken(Good):
    """What is caught below is what was broken: without it every rule is kept."""

    @pytest.fixture(autouse=True)
    def _importable(self, monkeypatch):
        monkeypatch.syspath_prepend(TEMPLATE)


@pytest.mark.parametrize("name", ["integration", "program"])
async def test_what_is_not_supplied_is_asked_for(name):
    contract = type("Incomplete", (Good,), {name: getattr(IntegrationContract, name)})
    with pytest.raises(NotImplementedError, match=rf"Supply {name}\(\): "):
        await contract().test_token_ids_equal_the_log_of_the_backend()


@pytest.mark.parametrize(
    ("rule", "broken"), RULES, ids=lambda each: getattr(each, "__name__", each)
)
async def test_a_broken_integration_is_caught(rule, broken):
    with pytest.raises(AssertionError):
        await getattr(broken(), f"test_{rule}")()


async def test_an_error_that_the_framework_wraps_must_be_declared_and_be_the_cause(monkeypatch):
    monkeypatch.setattr(Agent, "run", mangled(Agent.run))
    wrapping = programmed(wraps_errors="it says which agent failed")
    await wrapping().test_the_exception_arrives_unchanged()
    monkeypatch.setattr(Agent, "run", mangled(Agent.run))
    with pytest.raises(AssertionError):
        await wrapping().test_the_exception_arrives_unchanged()


async def test_an_error_that_only_claims_to_be_wrapped_is_caught():
    with pytest.raises(AssertionError, match="nothing wraps it"):
        await programmed(wraps_errors="it does not")().test_the_exception_arrives_unchanged()


async def test_altered_tokens_are_caught(monkeypatch):
    calls = Played.calls.fget

    def altered(self):
        return [
            msgspec.structs.replace(call, prompt_token_ids=[*call.prompt_token_ids, 7])
            for call in calls(self)
        ]

    monkeypatch.setattr(Played, "calls", property(altered))
    with pytest.raises(AssertionError, match="prompt ids"):
        await Good().test_token_ids_equal_the_log_of_the_backend()


async def test_a_join_that_takes_anything_is_caught(monkeypatch):
    monkeypatch.setattr(Played, "adapt", lambda self, *agents: None)
    with pytest.raises(AssertionError, match="without an error"):
        await Good().test_a_wrong_join_is_caught()


@pytest.mark.parametrize(
    "methods",
    [
        {"lacks": {"judge": "", "arun": "too slow"}},
        {"lacks": {"telepathy": "not yet"}},
        {"lacks": {"arun": "says it lacks what it has"}},
    ],
)
def test_undeclared_capabilities_are_caught(methods):
    with pytest.raises(AssertionError):
        programmed(**methods)().test_capabilities_are_declared()


@pytest.mark.parametrize("module", ["__init__", "plugin"])
def test_a_package_that_imports_its_framework_is_caught(module, tmp_path, monkeypatch):
    package = tmp_path / "agl_eager"
    package.mkdir()
    for source in (TEMPLATE / "agl_template").glob("*.py"):
        text = source.read_text().replace("agl_template", "agl_eager")
        if source.stem == module:
            text = text.replace("from typing import", "import httpx\nfrom typing import")
            text = text.replace(
                "from agl_core.interfaces", "import httpx\nfrom agl_core.interfaces"
            )
        (package / source.name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    broken = type("Eager", (Good,), {"package": "agl_eager"})
    with pytest.raises(AssertionError, match="No module named 'httpx'"):
        broken().test_importing_needs_no_framework_and_using_names_the_pip_line()


def test_every_rule_is_proven():
    elsewhere = {
        "token_ids_equal_the_log_of_the_backend",
        "a_wrong_join_is_caught",
        "capabilities_are_declared",
        "importing_needs_no_framework_and_using_names_the_pip_line",
    }
    rules = {name[5:] for name in vars(IntegrationContract) if name.startswith("test_")}
    assert rules == elsewhere | {rule for rule, _ in RULES}
