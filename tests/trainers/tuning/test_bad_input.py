"""Wrong settings, editors that do not answer, and programs that do not send the prompt."""

from __future__ import annotations

import pytest
from aiohttp import web

import agl_core
from agl_core.errors import ConfigError, TrainingError
from tests.trainers.tuning.world import World, apo, ask, bootstrap, writer_alone

HTML = "<html><body>Sign in</body></html>"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"phases": [{"optimizer": "apoo", "rollouts": 9}]}, "Unknown optimizer 'apoo'.*'apo'"),
        ({"phases": [bootstrap(setz=3)]}, r"phases\.0.*setz.*sets"),
        ({"phases": [bootstrap(sets=-3)]}, r"phases\.0.*sets = -3"),
        ({"optimizers": {"bootstrapp": {}}, "phases": [bootstrap()]}, "bootstrapp"),
        (
            {
                "optimizers": {"bootstrap": {"sets": "many"}},
                "phases": [{"optimizer": "bootstrap", "rollouts": 9}],
            },
            r"optimizers\.bootstrap.*sets",
        ),
        ({"phases": [apo(editor={"model": "m"})]}, "base_url"),
    ],
)
async def test_wrong_options_stop_the_run_before_any_rollout(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        await World(tmp_path, **settings).learn()


async def test_options_of_a_phase_override_those_of_the_optimizer(tmp_path):
    section = {"optimizers": {"bootstrap": {"threshold": 2.0, "sets": 1}}}
    world = World(tmp_path, agent=writer_alone, phases=[bootstrap(threshold=0.1)], **section)
    tuned = await world.tune()
    assert "0 demonstrations" not in tuned.reason


async def test_a_missing_editor_is_told(tmp_path):
    phase = apo()
    del phase["editor"]
    world = World(tmp_path, agent=writer_alone, phases=[phase])
    with pytest.raises(ConfigError, match=r"needs a model for critic and editor.*optimizers\.apo"):
        await world.tune()


async def test_a_budget_smaller_than_one_round_is_told_before_its_first_rollout(tmp_path):
    world = World(tmp_path, agent=writer_alone, phases=[bootstrap(20)])
    with pytest.raises(ConfigError, match=r"phases\[0\]\.rollouts = 20: .* at least 35 rollouts"):
        await world.tune()
    assert not await world.rollouts()


@pytest.mark.parametrize(
    ("later", "message"),
    [
        (bootstrap(20), r"phases\[1\]\.rollouts = 20"),
        (apo(editor={"base_url": "http://e/v1", "model": "m", "api_key_env": "NO_KEY"}), "NO_KEY"),
        (bootstrap(prompts=["tool"]), "descriptions of tools"),
    ],
)
async def test_a_later_phase_that_would_fail_stops_the_run_at_its_start(tmp_path, later, message):
    tool = {"agents": ["writer"], "captured": True, "tool": "search"}
    writer = {"agents": ["writer"], "captured": True}
    world = World(tmp_path, prompts={"writer": writer}, phases=[bootstrap(), later])
    if "prompts" in later:
        world.settings["prompts"]["tool"] = tool
        world.agent = searches
    with pytest.raises(ConfigError, match=message):
        await world.learn()
    assert not (tmp_path / "prompts").exists()


async def searches(task):
    tool = {"type": "function", "function": {"name": "search", "description": "Find a thing."}}
    return await ask("writer", "You search.", "Write.", tools=[tool])


async def test_validation_tasks_that_are_training_tasks_are_counted(tmp_path):
    world = World(tmp_path, agent=writer_alone, phases=[bootstrap()])
    world.val[:3] = world.train[:3]
    await world.tune()
    assert world.losses.counts["prompts_val_overlap"] == 3


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (401, '{"error": {"message": "wrong key"}}', "401"),
        (400, '{"error": {"message": "no such model"}}', "no such model"),
        (200, HTML, "[Hh][Tt][Mm][Ll]|Sign in|JSON"),
        (403, HTML, "403"),
        (429, '{"error": {"message": "slow down"}}', "429.*slow down|slow down"),
    ],
)
async def test_an_editor_that_does_not_answer_is_told(tmp_path, status, body, message):
    async with _editor(status, body) as url:
        editor = {"base_url": url, "model": "editor"}
        world = World(tmp_path, agent=writer_alone, phases=[apo(editor=editor, edits_at_once=1)])
        with pytest.raises(TrainingError, match=message):
            await world.tune()
    assert world.losses.counts["prompts_editor_failed"] == 3
    assert not await world.rollouts("queued", "running")


async def test_a_template_that_the_program_does_not_send_is_an_error(tmp_path):
    section = {"writer": {"agents": ["writer"], "text": "Write about {item}!"}}
    world = World(tmp_path, agent=writer_alone, prompts=section, phases=[bootstrap()])
    with pytest.raises(ConfigError, match=r"none of 16 calls of \['writer'\] has its text.*agl"):
        await world.tune()
    section["writer"]["agents"] = ["poet"]
    world = World(tmp_path / "poet", agent=writer_alone, prompts=section, phases=[bootstrap()])
    with pytest.raises(ConfigError, match=r"none of 0 calls of \['poet'\].*\['writer'\]"):
        await world.tune()


async def test_a_program_that_keeps_the_first_text_is_an_error(tmp_path):
    kept = []

    async def keeps(task):
        if not kept:
            kept.append(agl_core.resource("writer"))
        return await ask("writer", kept[0].format(item=task.input["item"]), "Write.")

    section = {"writer": {"agents": ["writer"], "text": "Answer about {item}: "}}
    world = World(tmp_path, agent=keeps, prompts=section, phases=[bootstrap(threshold=0.1)])
    with pytest.raises(ConfigError, match="has a new text, although calls had the first one"):
        await world.tune()


async def test_a_program_that_replaces_its_prompt_later_is_counted(tmp_path):
    world = World(tmp_path, agent=writer_alone, phases=[bootstrap(60)])
    prompts = await world.learn()

    async def overrides(task):
        return await ask("writer", "Say whatever you like today, in any words.", "Write.")

    world.agent = overrides
    async with world.open() as tuner:
        await world.alongside(tuner.tune(0, prompts))
        lost = (await world.gateway.lost()).counts
    assert lost["prompts_not_found"] == len([*world.backend.heads]) - 8


class _editor:  # noqa: N801  a context manager
    """An endpoint that answers every request alike."""

    def __init__(self, status, body):
        self._status, self._body = status, body

    async def __aenter__(self):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}/v1"

    async def __aexit__(self, *_):
        await self._runner.cleanup()

    async def _answer(self, request):
        kind = "text/html" if self._body is HTML else "application/json"
        again = {"Retry-After": "0"}
        return web.Response(status=self._status, text=self._body, content_type=kind, headers=again)
