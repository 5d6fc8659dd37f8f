"""Replicas on devices of their own: they serve while the policy is trained."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
import ray
from agl_verl._engine import VerlEngine
from agl_verl._options import VerlOptions
from agl_verl.cpu._server import actor_name

from agl_core._builtin import load_plugins
from agl_core.app.parts import make_algorithm
from agl_core.config.loader import resolve
from agl_core.types import Policy
from tests.trainers.verl.test_engine import LR, MODEL, batch_of, served_by

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),  # verl's and Ray's, of their own imports
]

APART = {"actor_rollout_ref": {"rollout": {"nnodes": 1, "n_gpus_per_node": 2}}}


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy(name=batch_of("grpo").policy, model=MODEL, trainable=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(policy: Policy) -> AsyncIterator[VerlEngine]:
    algorithm = {"name": "grpo", "lr": LR, "kl_weight": 0.1}
    config = resolve({"engine": "verl", "algorithm": algorithm, "seed": 3})
    _, setup = make_algorithm(config, load_plugins())
    made = VerlEngine(VerlOptions(device="cpu", overlong="drop", verl=APART), setup)
    await made.start([policy])
    yield made
    await made.stop()


async def test_the_old_weights_serve_until_the_new_ones_are_published(
    engine: VerlEngine, policy: Policy, tmp_path: Path
) -> None:
    assert engine.overlaps
    before = await engine.fingerprint(policy.name)

    training = asyncio.create_task(engine.train(batch_of("grpo")))
    await served_by(engine, policy.name, MODEL)
    update = await training

    assert update.version == policy.version + 1
    assert await engine.fingerprint(policy.name) != before
    await served_by(engine, policy.name, MODEL)
    await engine.publish(policy.name)
    await engine.save(policy.name, str(tmp_path), resumable=False)
    for _ in engine.backend(policy.name)._backends:
        await served_by(engine, policy.name, str(tmp_path))


async def test_every_replica_gets_the_new_weights(
    engine: VerlEngine, policy: Policy, tmp_path: Path
) -> None:
    await engine.update(batch_of("grpo", seed=1))
    await engine.save(policy.name, str(tmp_path), resumable=False)
    fleet = engine.backend(policy.name)
    assert len(fleet._backends) == 2
    for replica in (0, 1):
        fleet._under_way[:] = [100, 100]
        fleet._under_way[replica] = 0
        await served_by(engine, policy.name, str(tmp_path))
    fleet._under_way[:] = [0, 0]


async def test_a_dead_one_is_started_when_there_are_weights_for_it(
    engine: VerlEngine, policy: Policy, tmp_path: Path
) -> None:
    """Sooner, it would answer by the model that the run began with."""
    process = psutil.Process(ray.get(ray.get_actor(actor_name(0)).pid.remote()))
    process.kill()
    psutil.wait_procs([process], timeout=60)
    replicas = engine._replicas[policy.name]
    before = list(replicas.replaced)

    await engine.train(batch_of("grpo", seed=3))
    assert replicas.replaced == before
    await engine.publish(policy.name)

    assert replicas.replaced == [before[0] + 1, before[1]]
    await engine.save(policy.name, str(tmp_path), resumable=False)
    await served_by(engine, policy.name, str(tmp_path))


async def test_one_that_dies_while_the_policy_is_trained_comes_back_with_the_new_weights(
    engine: VerlEngine, policy: Policy, tmp_path: Path
) -> None:
    await engine.train(batch_of("grpo", seed=2))
    killed = [ray.get(ray.get_actor(actor_name(rank)).pid.remote()) for rank in (0, 1)]
    processes = [psutil.Process(pid) for pid in killed]
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    psutil.wait_procs(processes, timeout=60)
    calling = asyncio.create_task(served_by(engine, policy.name, str(tmp_path)))

    await engine.save(policy.name, str(tmp_path), resumable=False)
    assert not calling.done()
    await engine.publish(policy.name)

    await calling
