"""`Trainer`, rollout functions and agents of agentlightning, with the engine of three words."""

import asyncio
import json
import warnings
from pathlib import Path

import agl_compat as agl
import httpx
import pytest
from agl_compat._algorithms import APO, VERL
from agl_compat._selection import agents_of, globs
from agl_testing.fake_openai import FakeOpenAI, FakeOptions

import agl_core
from agl_core.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore::agl_compat.OldNameWarning")
ROWS = [{"question": f"yes or no {n}?", "answer": "yes"} for n in range(4)]


def ask(llm, text, system=""):
    with httpx.Client(verify=False, timeout=600) as client:
        answer = client.post(
            f"{llm.endpoint}/chat/completions",
            headers={"authorization": f"Bearer {llm.api_key}"},
            json={
                "model": llm.model,
                "messages": [
                    {"role": "system", "content": system},
                    {"role": "user", "content": text},
                ],
            },
        )
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]["content"]


def _asks(task, llm):
    assert task in ROWS
    return float(ask(llm, task["question"]) == task["answer"])


async def _asks_later(task, llm, rollout):
    assert rollout.input == task
    assert rollout.mode == "train"
    said = await asyncio.to_thread(ask, llm, task["question"])
    agl.emit_reward(float(said == "yes"))


with warnings.catch_warnings(action="ignore"):
    asks, asks_later = agl.llm_rollout(_asks), agl.rollout(_asks_later)


class Agent(agl.LitAgent):
    def training_rollout(self, task, rollout_id, resources):
        assert rollout_id
        return asks(task, resources["main_llm"])

    def validation_rollout(self, task, resources):
        return 0.25


@pytest.mark.parametrize("agent", [asks, asks_later, Agent()], ids=["plain", "async", "class"])
def test_a_rollout_is_trained_by_its_reward(settings, agent):
    report = agl.Trainer(n_workers=3, settings=settings).fit(agent, ROWS)

    assert len(report.steps) == 2
    trained = report.policies["trained"]
    assert trained["sha256_before"] != trained["sha256_after"]
    stored = json.loads((Path(report.directory) / "config.json").read_text())
    assert stored["rollout"]["concurrency"] == 3
    assert stored["capture"]["adapter"] == "triplets"


def test_validation_has_a_method_of_its_own(settings):
    report = agl.Trainer(settings=settings).fit(Agent(), ROWS, val_dataset=ROWS)
    assert [evaluation.score.mean for evaluation in report.evaluations] == [0.25, 0.25]


def test_agent_match_selects_who_is_trained(settings):
    def two(task, llm):
        with agl_core.agent_scope("planner"):
            ask(llm, "plan")
        with agl_core.agent_scope("write_query"):
            return float(ask(llm, "write") == "yes")

    report = agl.Trainer(adapter={"agent_match": "write"}, settings=settings).fit(two, ROWS)

    stored = json.loads((Path(report.directory) / "config.json").read_text())
    assert stored["agents"] == ["*write*"]
    assert {agent for step in report.steps for agent in step.rows} <= {"write_query"}
    assert report.policies["frozen"]["sha256_before"] == report.policies["frozen"]["sha256_after"]


def test_prompts_reach_the_rollout_function_by_name(settings):
    seen = []

    def greets(task, llm, prompt_template):
        seen.append(prompt_template.format(name="Ada"))
        return float(ask(llm, task["question"]) == "yes")

    resources = {"prompt_template": agl.PromptTemplate("Hello {name}", engine="f-string")}
    agl.Trainer(initial_resources=resources, settings=settings).fit(greets, ROWS)

    assert set(seen) == {"Hello Ada"}


def wants_more(task, tokens):
    return 1.0


def returns_spans(task):
    return [object()]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (wants_more, "asks for 'tokens', but a rollout offers"),
        (returns_spans, "return the reward as a number, a list of Triplet, or None"),
    ],
)
def test_a_rollout_function_that_does_not_fit_is_an_error(settings, function, message):
    with pytest.raises(agl_core.AglError, match=message):
        agl.Trainer(settings=settings).fit(function, ROWS)


def test_an_engine_that_scores_nothing_is_named(settings):
    with pytest.raises(agl_core.CaptureError, match="does not compute them"):
        agl.Trainer(settings=settings).fit(lambda task: [agl.Triplet([1], [300], 1.0)], ROWS)


def test_given_logprobs_need_no_engine_that_scores(settings):
    def own(task, rollout):
        sample = rollout.metadata["sample"]
        logprobs = {"logprobs": [-1.0986123]}
        return [agl.Triplet([1], [300 + sample % 3], float(sample), logprobs)]

    report = agl.Trainer(settings=settings).fit(own, ROWS)

    assert report.calls == 2 * 2 * 4
    trained = report.policies["trained"]
    assert trained["sha256_before"] != trained["sha256_after"]


def test_dev_runs_rows_and_trains_nothing(settings):
    def runs(task, llm):
        return 1.0 if ask(llm, "hello") else 0.0

    with FakeOpenAI(options=FakeOptions(token_ids=False)) as server:
        resources = {"main_llm": agl.LLM(endpoint=server.base_url, model="fake-model")}
        settings = {"directory": settings["directory"]}
        trainer = agl.Trainer(initial_resources=resources, settings=settings)
        evaluation = trainer.dev(runs, ROWS)
    assert evaluation.score.mean == 1.0


WORDS = ("price", "unit")


def edits(messages, role):
    said = "\n".join(str(message["content"]) for message in messages)
    word = next((word for word in WORDS if f"missing {word}" in said), "calm")
    return f"missing {word}" if role == "critic" else f"```\nAnswer. Use {word}.\n```"


def test_apo_tunes_the_prompt_of_a_rollout_function(tmp_path):
    def answers(task, prompt_template, llm):
        said = ask(llm, task["question"], prompt_template.format())
        missing = [word for word in WORDS if word not in said]
        agl.emit_reward(1 - len(missing) / 2, why=" ".join(f"missing {word}" for word in missing))

    def model(body):
        return body["messages"][0]["content"]

    rows = [{"question": f"q{n}"} for n in range(12)]
    with FakeOpenAI(model, FakeOptions(token_ids=False)) as server:
        trainer = agl.Trainer(
            algorithm=APO(
                gradient_batch_size=2,
                val_batch_size=4,
                beam_width=1,
                branch_factor=2,
                beam_rounds=1,
                options={"editor": {"function": f"{__file__}:edits"}, "confidence": 0.7},
            ),
            initial_resources={
                "prompt_template": agl.PromptTemplate("Answer."),
                "main_llm": agl.LLM(endpoint=server.base_url, model="fake-model"),
            },
            adapter=agl.TraceToMessages(),
            settings={"directory": str(tmp_path)},
        )
        report = trainer.fit(answers, train_dataset=rows, val_dataset=rows)
    tuned = report.prompts["prompt_template"]
    assert tuned.text in ("Answer. Use price.", "Answer. Use unit.")
    assert tuned.after.mean > tuned.before.mean


CONFIG = {
    "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
    "data": {"train_batch_size": 2, "max_response_length": 64},
    "actor_rollout_ref": {
        "model": {"path": "weights"},
        "rollout": {"n": 4, "name": "vllm"},
        "actor": {"optim": {"lr": 1e-6}, "use_kl_loss": True, "kl_loss_coef": 0.01},
    },
    "trainer": {"total_epochs": 2, "test_freq": -1, "n_gpus_per_node": 1},
}


def test_a_configuration_of_verl_becomes_settings():
    with pytest.warns(
        agl.OldNameWarning, match="These have no effect: .*n_gpus_per_node"
    ) as caught:
        found = VERL(CONFIG).settings(rows=6)
    assert found.pop("engine.name", None) in (None, "verl")
    assert {key: value for key, value in found.items() if not key.startswith("engine.")} == {
        "algorithm.name": "grpo",
        "algorithm.kl_weight": 0.01,
        "algorithm.lr": 1e-6,
        "algorithm.group_size": 4,
        "model": "weights",
        "rollout.max_tokens": 64,
        "train.tasks_per_step": 2,
        "train.steps": 6,
    }
    assert len(caught) == 1


def test_apo_without_a_client_says_what_to_pass():
    with pytest.raises(ConfigError, match="no client of critic and editor"):
        APO().settings(4)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("write", ["*write*"]),
        ("^write$|rewrite", ["write", "*rewrite*"]),
        ("^sql.*", ["sql*"]),
        ("(a|b)", ["*a*", "*b*"]),
    ],
)
def test_a_pattern_of_names_becomes_globs(pattern, expected):
    assert globs(pattern) == expected


def test_other_patterns_are_errors():
    for pattern in ("a+", "[ab]", "a{2}", ""):
        with pytest.raises(ConfigError, match="cannot be written as names or globs"):
            globs(pattern)
    with pytest.raises(ConfigError, match="only agent_match has an equal"):
        agents_of({"agent_match": "a", "llm_call_match": "b"}, None)
    with pytest.raises(ConfigError, match="Trainer got adapter"):
        agents_of(object(), None)
    assert agents_of(agl.TracerTraceToTriplet(), "^a$") == ["a"]
    assert agents_of(None, None) == ["*"]


def test_what_is_not_there_is_an_error():
    with pytest.raises(ConfigError, match=r"\['hooks'\], which it does not know"):
        agl.Trainer(hooks=[])
    with pytest.raises(ConfigError, match="there is no server to name"):
        agl.Trainer().fit(asks, "http://localhost:9999")
    with pytest.raises(ConfigError, match="defines none of training_rollout_async"):
        agl.Trainer().fit(agl.LitAgent(), ROWS)
    with pytest.raises(ConfigError, match="Trainer got algorithm="):
        agl.Trainer(algorithm=object()).fit(asks, ROWS)
    with pytest.raises(ConfigError, match="does not know the model"):
        agl.Trainer(algorithm=APO()).fit(asks, ROWS)
    with pytest.raises(ConfigError, match="cannot be called"):
        agl.Trainer().fit("agent", ROWS)
    with pytest.raises(ConfigError, match="only 'f-string' is served"):
        agl.PromptTemplate("x", engine="jinja")
    with pytest.warns(agl.OldNameWarning, match="These have no effect: strategy, tracer"):
        agl.Trainer(tracer=None, strategy="cs")


def test_of_several_dimensions_the_primary_one_is_the_reward(settings):
    def graded(task, llm):
        said = ask(llm, "x")
        agl.emit_reward(
            {"right": float(said == "yes"), "length": 99.0},
            primary_key="right",
            attributes={"grader": "exact"},
        )

    report = agl.Trainer(settings=settings).fit(graded, ROWS)
    assert 0 <= report.steps[0].reward <= 1
    assert set(report.steps[0].channels) == {"main"}
    for wrong in ({"a": 1.0, "b": 2.0}, {}):
        with pytest.raises(agl_core.RolloutError, match="name the one that counts"):
            agl.emit_reward(wrong)


def test_a_data_set_may_have_only_a_length_and_rows(settings):
    class Rows:
        def __len__(self):
            return len(ROWS)

        def __getitem__(self, number):
            return ROWS[number % len(ROWS)]

    Rows.__iter__ = None
    settings["train.steps"] = 1
    assert len(agl.Trainer(settings=settings).fit(asks, Rows()).steps) == 1


def test_a_function_of_rewards_emits_what_it_returns(settings):
    @agl.reward
    def judge(said):
        return float(said == "yes")

    def judged(task, llm):
        judge(ask(llm, "x"))

    report = agl.Trainer(settings=settings).fit(judged, ROWS)
    assert report.steps[0].reward is not None
