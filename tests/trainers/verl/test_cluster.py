"""The Ray cluster: which device, what it is started with, and what is refused. Ray is not started."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest
import torch
from agl_verl import _compat
from agl_verl._cluster import Cluster, choose_device, use_platform
from agl_verl.cpu import ENVIRONMENT
from omegaconf import OmegaConf

from agl_core.errors import ConfigError
from tests.trainers.verl import verl_parts  # noqa: F401 (verl imported without its warnings)

ray = pytest.importorskip("ray")


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """No cluster is named, and no GPU seen."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


class FakeRay:
    """Stands for Ray: takes connections and has the nodes that it is given."""

    def __init__(self, monkeypatch):
        self.nodes = [{"GPU": 1.0, "CPU": 4.0}]
        self.arguments = None
        self.error = None
        self.connected = False
        self.environment = {}
        monkeypatch.setattr(ray, "init", self.init)
        monkeypatch.setattr(ray, "shutdown", self.shutdown)
        monkeypatch.setattr(ray, "is_initialized", lambda: self.connected)
        monkeypatch.setattr(ray, "nodes", self.listed)
        context = SimpleNamespace(runtime_env=self.environment)
        monkeypatch.setattr(ray, "get_runtime_context", lambda: context)

    def init(self, **arguments):
        self.arguments = arguments
        if self.error is not None:
            raise self.error
        self.connected = True

    def shutdown(self):
        self.connected = False

    def listed(self):
        return [{"Alive": True, "Resources": each} for each in self.nodes] + [
            {"Alive": False, "Resources": {"GPU": 64.0, "CPU": 640.0}}
        ]


@pytest.fixture
def fake(monkeypatch):
    return FakeRay(monkeypatch)


def config(*, per_node=1, nodes=1, ray_init=None, **rollout):
    return OmegaConf.create(
        {
            "actor_rollout_ref": {
                "rollout": {
                    "nnodes": 0,
                    "tensor_model_parallel_size": 1,
                    "data_parallel_size": 1,
                    "pipeline_model_parallel_size": 1,
                    **rollout,
                }
            },
            "trainer": {"n_gpus_per_node": per_node, "nnodes": nodes},
            "ray_kwargs": {"ray_init": {"num_cpus": None, **(ray_init or {})}},
        }
    )


def test_auto_is_the_cpu_where_there_is_neither_gpu_nor_cluster():
    assert choose_device("auto", None) == "cpu"


def test_auto_is_cuda_where_there_is_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto", None) == "cuda"


def test_auto_is_cuda_where_a_cluster_is_joined(monkeypatch):
    assert choose_device("auto", "10.0.0.1:6379") == "cuda"
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert choose_device("auto", None) == "cuda"


def test_cuda_without_a_gpu_needs_a_cluster():
    with pytest.raises(ConfigError, match=r"sees no GPU.*engine.device = 'cpu'.*ray_address"):
        choose_device("cuda", None)
    assert choose_device("cuda", "auto") == "cuda"
    assert choose_device("cpu", "auto") == "cpu"


@pytest.fixture
def unimported(monkeypatch):
    """A process that has not imported verl, and its environment."""
    monkeypatch.delitem(sys.modules, "verl")
    for name in ENVIRONMENT:
        monkeypatch.delenv(name)
    return os.environ


def test_the_platform_is_set_before_verl_is_imported(unimported):
    use_platform("cpu")
    assert {name: unimported[name] for name in ENVIRONMENT} == dict(ENVIRONMENT)


def test_a_gpu_engine_sets_nothing(unimported):
    use_platform("cuda")
    assert not unimported.keys() & ENVIRONMENT.keys()


def test_other_modules_that_verl_imports_stay(unimported):
    unimported["VERL_USE_EXTERNAL_MODULES"] = "theirs"
    use_platform("cpu")
    use_platform("cpu")
    assert unimported["VERL_USE_EXTERNAL_MODULES"] == "theirs,agl_verl.cpu._plugin"
    use_platform("cuda")
    assert unimported["VERL_USE_EXTERNAL_MODULES"] == "theirs"
    assert "VERL_PLATFORM" not in unimported


def test_verl_imported_for_another_device_is_refused():
    use_platform("cpu")
    with pytest.raises(ConfigError, match="imported for another device than 'cuda'"):
        use_platform("cuda")


def test_a_cluster_of_ones_own_has_the_devices_that_are_asked_for(fake):
    fake.nodes = [{"GPU": 2.0, "CPU": 8.0}]
    cluster = Cluster(device="cpu", address=None)
    cluster.connect(config(per_node=2))
    assert fake.arguments["address"] == "local"
    assert (fake.arguments["num_gpus"], fake.arguments["num_cpus"]) == (2, 8)
    assert fake.arguments["runtime_env"]["env_vars"].items() >= ENVIRONMENT.items()
    cluster.close()
    assert not fake.connected


def test_a_gpu_machine_counts_its_own_devices(fake):
    Cluster(device="cuda", address=None).connect(config())
    assert not {"num_gpus", "num_cpus"} & fake.arguments.keys()
    assert "VERL_PLATFORM" not in fake.arguments["runtime_env"]["env_vars"]


def test_what_the_user_gives_ray_is_taken_last_and_key_by_key(fake):
    given = {"num_cpus": 16, "runtime_env": {"env_vars": {"HF_HOME": "/x"}, "py_executable": None}}
    Cluster(device="cpu", address=None).connect(config(ray_init=given))
    assert fake.arguments["num_cpus"] == 16
    environment = fake.arguments["runtime_env"]
    assert environment["env_vars"]["HF_HOME"] == "/x"
    assert environment["env_vars"]["VERL_PLATFORM"] == "cpu"
    verls = _compat.get_ppo_ray_runtime_env(config())["env_vars"]
    assert verls
    assert environment["env_vars"].keys() >= verls.keys()
    assert "py_executable" not in environment


def test_a_cluster_is_joined_with_its_own_resources(fake, monkeypatch):
    Cluster(device="cpu", address="10.0.0.1:6379").connect(config())
    assert fake.arguments["address"] == "10.0.0.1:6379"
    assert not {"num_gpus", "num_cpus", "include_dashboard"} & fake.arguments.keys()
    fake.shutdown()
    monkeypatch.setenv("RAY_ADDRESS", "ray://there:10001")
    Cluster(device="cpu", address=None).connect(config())
    assert fake.arguments["address"] == "ray://there:10001"


def test_a_cluster_that_cannot_be_reached_is_named(fake):
    fake.error = ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")
    cluster = Cluster(device="cuda", address="10.0.0.1:6379")
    with pytest.raises(ConfigError, match=r"join the Ray cluster '10.0.0.1:6379'.*ray_address"):
        cluster.connect(config())
    cluster.close()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("Unknown keyword argument(s): num_cpu"), "num_cpu"),
        (Exception("The current node timed out during startup"), "timed out during startup"),
    ],
)
def test_a_ray_that_cannot_be_started_says_why(fake, error, told):
    fake.error = error
    with pytest.raises(ConfigError, match=rf"Cannot start Ray.*{told}.*verl.ray_kwargs.ray_init"):
        Cluster(device="cpu", address=None).connect(config())


@pytest.mark.parametrize(
    ("device", "hint"), [("cuda", "engine.device = 'cpu'"), ("cpu", "--num-gpus=4")]
)
def test_too_few_devices_name_both_numbers(fake, device, hint):
    fake.nodes = [{"GPU": 1.0, "CPU": 64.0}, {"CPU": 64.0}]
    with pytest.raises(ConfigError, match=f"has 1 devices, but the run needs 4: .*{hint}"):
        Cluster(device=device, address="auto").connect(config(per_node=2, nodes=2))


def test_devices_of_one_replica_lie_on_one_node(fake):
    fake.nodes = [{"GPU": 4.0, "CPU": 64.0}, {"GPU": 4.0, "CPU": 64.0}]
    cluster = Cluster(device="cuda", address="auto")
    with pytest.raises(ConfigError, match=r"room for 0 of 1 times 8 devices.*4/64, 4/64"):
        cluster.connect(config(per_node=8))
    cluster.close()
    cluster.connect(config(per_node=2, nodes=4))
    cluster.close()


def test_too_few_cpus_would_wait_for_ever_and_are_refused(fake):
    fake.nodes = [{"GPU": 1.0, "CPU": 2.0}]
    with pytest.raises(ConfigError, match=r"room for 0 of 1.*with 3 CPUs.*1/2.*ray_init.num_cpus"):
        Cluster(device="cuda", address=None).connect(config())


def test_replicas_on_devices_of_their_own_are_asked_for_too(fake):
    apart = {"nnodes": 1, "n_gpus_per_node": 3}
    fake.nodes = [{"GPU": 4.0, "CPU": 16.0}]
    Cluster(device="cpu", address=None).connect(config(**apart))
    assert (fake.arguments["num_gpus"], fake.arguments["num_cpus"]) == (4, 16)
    fake.shutdown()
    fake.nodes = [{"GPU": 3.0, "CPU": 16.0}]
    with pytest.raises(ConfigError, match="has 3 devices, but the run needs 4: "):
        Cluster(device="cuda", address="auto").connect(config(**apart))


def test_each_replica_lies_on_one_node(fake):
    """Two replicas of two devices: beside the trainer's one there is room for one on either node."""
    apart = {"nnodes": 2, "n_gpus_per_node": 2, "tensor_model_parallel_size": 2}
    fake.nodes = [{"GPU": 3.0, "CPU": 64.0}, {"GPU": 2.0, "CPU": 64.0}]
    Cluster(device="cuda", address="auto").connect(config(**apart))
    fake.shutdown()
    fake.nodes = [{"GPU": 3.0, "CPU": 64.0}, {"GPU": 1.0, "CPU": 64.0}, {"GPU": 1.0, "CPU": 64.0}]
    told = r"room for 1 of 2 times 2 devices.*with 2 CPUs each, for rollouts.*rollout.n_gpus_per_n"
    with pytest.raises(ConfigError, match=told):
        Cluster(device="cuda", address="auto").connect(config(**apart))


def test_so_many_cpus_does_verl_reserve(fake):
    fake.nodes = [{"GPU": 1.0, "CPU": float(_compat.ResourcePoolManager.max_colocate_count)}]
    Cluster(device="cuda", address=None).connect(config())


def test_a_connection_of_somebody_else_is_used_and_left_open(fake):
    fake.connected = True
    fake.environment["env_vars"] = dict(ENVIRONMENT)
    cluster = Cluster(device="cpu", address=None)
    cluster.connect(config())
    assert fake.arguments is None
    cluster.close()
    assert fake.connected


def test_workers_of_somebody_elses_connection_must_know_the_platform(fake):
    fake.connected = True
    with pytest.raises(ConfigError, match=r"connected in this process already.*ray.shutdown\(\)"):
        Cluster(device="cpu", address=None).connect(config())
    Cluster(device="cuda", address=None).connect(config())


def test_closing_twice_is_closing_once(fake):
    cluster = Cluster(device="cpu", address=None)
    cluster.close()
    cluster.connect(config())
    cluster.close()
    cluster.close()
    assert not fake.connected
