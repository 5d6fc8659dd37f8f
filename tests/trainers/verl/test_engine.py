"""The engine on a Ray cluster of its own: what it trains, serves, keeps and replaces."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import pytest_asyncio
import ray
import torch
from agl_testing.engine_contract import EngineContract
from agl_torch.engine import TorchEngine
from agl_torch.options import TorchOptions
from agl_verl._engine import VerlEngine
from agl_verl._options import VerlOptions
from agl_verl.cpu._server import WEIGHTS, CpuServer, actor_name, handover
from safetensors.torch import load_file
from transformers import AutoTokenizer

from agl_core._builtin import load_plugins
from agl_core.app.parts import make_algorithm
from agl_core.config.loader import resolve
from agl_core.errors import ConfigError, EngineError, TrainingError
from agl_core.gateway._routing import Route
from agl_core.interfaces import AlgorithmSetup
from agl_core.training.algorithms import GRPO, RLOO, GRPOOptions, RLOOOptions
from agl_core.types import Batch, Policy
from tests.trainers.verl.convert_cases import case_of, conversations
from tests.trainers.verl.recomputed import recomputed

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore"),  # verl's and Ray's, of their own imports
]

MODEL = str(Path(__file__).parents[3] / "examples" / "agl_demo" / "model")
LR = 1e-3
ALGORITHMS = {
    "grpo": GRPO(GRPOOptions(weighting="attempt")),
    "rloo": RLOO(RLOOOptions(weighting="token")),
}


def setup_of(engine: str) -> AlgorithmSetup:
    config = resolve({"engine": engine, "algorithm": {"name": "grpo", "lr": LR}, "seed": 3})
    return make_algorithm(config, load_plugins())[1]


def batch_of(algorithm: str, seed: int = 0) -> Batch:
    """Merged turns of two interleaved agents; the behaviour is not the model's, so ratios clip."""
    batch = case_of(conversations(seed), ALGORITHMS[algorithm]).batch
    assert len(set(batch.agents)) > 1
    return batch


@pytest.fixture(scope="module")
def policies() -> list[Policy]:
    """The trained one serves both agents of the batches; the batches are of policy ``trained``."""
    name = batch_of("grpo").policy
    return [
        Policy(name=name, model=MODEL, trainable=True),
        Policy(name="planner", model=MODEL),
    ]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where processes of verl's put temporary files."""
    return tmp_path_factory.mktemp("scratch")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(policies: list[Policy], scratch: Path) -> AsyncIterator[VerlEngine]:
    workers = {"ray_init": {"runtime_env": {"env_vars": {"TMPDIR": str(scratch)}}}}
    options = VerlOptions(device="cpu", overlong="drop", verl={"ray_kwargs": workers})
    made = VerlEngine(options, setup_of("verl"))
    await made.start(policies)
    yield made
    await made.stop()


async def asked(engine: VerlEngine, policy: str) -> dict[str, Any]:
    """An answer to a request that names the model as the gateway does."""
    backend = engine.backend(policy)
    body = {
        "model": Route(engine._policies[policy], backend).upstream_model,
        "messages": [{"role": "user", "content": "What is a price?"}],
        "logprobs": True,
        "return_token_ids": True,
        "max_tokens": 8,
        "seed": 5,
    }
    reply = await backend.chat(json.dumps(body).encode(), headers={}, timeout_s=60)
    try:
        text = b"".join([chunk async for chunk in reply.body()])
    finally:
        await reply.close()
    assert reply.status == 200, text
    return json.loads(text)


def written(directory: Path) -> list[Path]:
    """Files with something in them, which verl's locks have not."""
    return [file for file in directory.rglob("*") if file.stat().st_size]


async def served_by(engine: VerlEngine, policy: str, directory: str) -> None:
    """Check that the log-probabilities of an answer are those of the weights in a directory."""
    answer = await asked(engine, policy)
    (choice,) = answer["choices"]
    prompt, sampled = answer["prompt_token_ids"], choice["token_ids"]
    told = torch.tensor([entry["logprob"] for entry in choice["logprobs"]["content"]])
    torch.testing.assert_close(told, recomputed(directory, prompt, sampled), atol=2e-4, rtol=0)


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
async def test_a_step_is_that_of_agl_torch(
    engine: VerlEngine, policies: list[Policy], tmp_path: Path, algorithm: str
) -> None:
    name = policies[0].name
    await engine.save(name, str(tmp_path / "before"))
    other = TorchEngine(TorchOptions(device="cpu", dtype="float32", threads=1), setup_of("torch"))
    begin = Policy(name=name, model=str(tmp_path / "before"), trainable=True)
    await other.start([begin])
    fresh = algorithm == "grpo"  # later steps have an optimizer's state that agl_torch lacks
    try:
        batch = batch_of(algorithm)
        mine, theirs = await engine.update(batch), await other.update(batch)
        await engine.save(name, str(tmp_path / "mine"))
        await other.save(name, str(tmp_path / "theirs"))
    finally:
        await other.stop()

    for metric in ("loss", "grad_norm"):
        assert mine.metrics[metric] == pytest.approx(theirs.metrics[metric], rel=1e-4, abs=1e-6)
    assert mine.version == policies[0].version + (1 if fresh else 2)
    assert mine.rows.keys() == theirs.rows.keys()
    if fresh:
        ours = load_file(tmp_path / "mine" / "model.safetensors")
        expected = load_file(tmp_path / "theirs" / "model.safetensors")
        base = load_file(tmp_path / "before" / "model.safetensors")
        moved = max(float((ours[key].float() - base[key].float()).abs().max()) for key in expected)
        assert moved > LR / 2
        for key, tensor in expected.items():
            torch.testing.assert_close(ours[key].float(), tensor.float(), atol=LR / 50, rtol=0)


class TestContract(EngineContract):
    tolerance = 2e-4

    @pytest.fixture
    def engine(self, engine: VerlEngine) -> VerlEngine:
        return engine

    @pytest.fixture
    def policy(self, policies: list[Policy]) -> Policy:
        return policies[0]

    @pytest.fixture
    def algorithm_setup(self) -> AlgorithmSetup:
        return setup_of("verl")

    @pytest.fixture
    def recompute(self) -> Callable[..., list[float]]:
        return lambda *arguments: recomputed(*arguments).tolist()

    @pytest.fixture
    def decode(self) -> Callable[..., Awaitable[str]]:
        tokenizer = AutoTokenizer.from_pretrained(MODEL)

        async def text(ids: Sequence[int]) -> str:
            return tokenizer.decode(ids)

        return text

    @pytest.fixture
    def under_way(self) -> Callable[[], Awaitable[int]]:
        """Looks into the actor that serves."""

        async def count() -> int:
            server = ray.get_actor(actor_name(0))
            looking = server.__ray_call__.remote(
                lambda self: self._engine._worker.lanes["served"].busy
            )
            return int(await looking)

        return count


async def test_what_was_trained_is_served_and_the_frozen_policy_is_as_it_was(
    engine: VerlEngine, policies: list[Policy], tmp_path: Path
) -> None:
    name, frozen = policies[0].name, policies[1].name
    untouched = await engine.fingerprint(frozen)
    before = await engine.fingerprint(name)
    await engine.update(batch_of("grpo", seed=1))
    await engine.save(name, str(tmp_path), resumable=False)

    assert await engine.fingerprint(name) != before
    assert await engine.fingerprint(frozen) == untouched
    assert not (tmp_path / "training_state").exists()
    await served_by(engine, name, str(tmp_path))
    await served_by(engine, frozen, MODEL)


async def test_a_checkpoint_goes_on_as_if_nothing_had_happened(
    engine: VerlEngine, policies: list[Policy], tmp_path: Path
) -> None:
    name = policies[0].name
    await engine.save(name, str(tmp_path))
    saved = await engine.fingerprint(name)
    version = (await engine.update(batch_of("grpo", seed=2))).version - 1
    after = await engine.fingerprint(name)
    await engine.update(batch_of("grpo", seed=3))

    await engine.load(name, str(tmp_path), version=version)

    assert await engine.fingerprint(name) == saved
    await served_by(engine, name, str(tmp_path))
    again = await engine.update(batch_of("grpo", seed=2))
    assert again.version == version + 1
    assert await engine.fingerprint(name) == after


async def test_a_directory_without_training_state_cannot_be_gone_on_from(
    engine: VerlEngine, policies: list[Policy]
) -> None:
    with pytest.raises(ConfigError, match="no training state"):
        await engine.load(policies[0].name, MODEL, version=1)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for nothing much."""
    directory = tmp_path / "full"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(directory)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


async def test_a_full_disk_is_named_and_spoils_nothing(
    engine: VerlEngine, policies: list[Policy], tmp_path: Path, full: Path
) -> None:
    name = policies[0].name
    await engine.save(name, str(tmp_path / "kept"))
    with pytest.raises(TrainingError, match=rf"not write the checkpoint {full}/x: .* MB are left"):
        await engine.save(name, str(full / "x"))
    await engine.update(batch_of("grpo", seed=5))
    await engine.load(name, str(tmp_path / "kept"), version=1)
    await served_by(engine, name, str(tmp_path / "kept"))


@pytest.mark.timeout(300)
async def test_a_server_without_memory_costs_an_answer_at_most(
    engine: VerlEngine, policies: list[Policy], tmp_path: Path
) -> None:
    name = policies[0].name
    await engine.save(name, str(tmp_path), resumable=False)
    pid = ray.get(ray.get_actor(actor_name(0)).pid.remote())
    unlimited = resource.prlimit(pid, resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))
    body = {"messages": [{"role": "user", "content": "price " * 700}], "n": 32, "max_tokens": 1}
    sent, refused = json.dumps(body).encode(), False
    try:
        reply = await engine.backend(name).chat(sent, headers={}, timeout_s=20)
    except EngineError:
        refused = True
    else:
        refused = reply.status != 200
        await reply.close()
    if psutil.pid_exists(pid):
        resource.prlimit(pid, resource.RLIMIT_AS, unlimited)
    assert refused or not psutil.pid_exists(pid)  # then another one answered
    await served_by(engine, name, str(tmp_path))


async def test_a_replica_that_was_killed_is_replaced_with_the_weights_of_now(
    engine: VerlEngine, policies: list[Policy], tmp_path: Path, scratch: Path
) -> None:
    name = policies[0].name
    await engine.save(name, str(tmp_path), resumable=False)
    killed = ray.get(ray.get_actor(actor_name(0)).pid.remote())
    os.kill(killed, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(killed)] if psutil.pid_exists(killed) else [], timeout=60)
    assert written(scratch) == []

    await served_by(engine, name, str(tmp_path))

    assert ray.get(ray.get_actor(actor_name(0)).pid.remote()) != killed
    await engine.update(batch_of("grpo", seed=4))
    await engine.save(name, str(tmp_path), resumable=False)
    await served_by(engine, name, str(tmp_path))


async def test_what_a_killed_worker_left_is_removed(engine: VerlEngine, scratch: Path) -> None:
    await engine.update(batch_of("grpo", seed=5))
    left = scratch / handover(0).name
    left.mkdir()
    (left / "model.safetensors").write_text("half of it")
    await engine.update(batch_of("grpo", seed=6))
    assert written(scratch) == []


async def test_what_a_killed_worker_left_last_goes_with_the_server(tmp_path: Path) -> None:
    shutil.copy(Path(MODEL) / WEIGHTS, tmp_path)
    server = CpuServer(MODEL, {"device": "cpu"})
    await server.start()
    await server.load(str(tmp_path), 1)
    await server.stop()
    assert not tmp_path.exists()  # noqa: ASYNC240 (nothing else is under way)


def test_weights_are_handed_over_whatever_the_run_is_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(namespace="../a/b"))
    handover(0).mkdir()
    assert handover(0).parent == tmp_path
