"""Algorithms of agentlightning as settings of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Final, cast

from agl_compat._names import renamed
from agl_core.errors import ConfigError

Settings = dict[str, Any]
"""Dotted keys of a run to values."""

_KEYS: Final[Mapping[str, str]] = {
    "algorithm.adv_estimator": "algorithm.name",
    "actor_rollout_ref.model.path": "model",
    "actor_rollout_ref.actor.optim.lr": "algorithm.lr",
    "actor_rollout_ref.actor.clip_ratio_low": "algorithm.clip_low",
    "actor_rollout_ref.actor.clip_ratio_high": "algorithm.clip_high",
    "actor_rollout_ref.rollout.n": "algorithm.group_size",
    "actor_rollout_ref.rollout.temperature": "rollout.temperature",
    "data.train_batch_size": "train.tasks_per_step",
    "data.max_response_length": "rollout.max_tokens",
    "trainer.total_training_steps": "train.steps",
    "trainer.test_freq": "train.eval_every",
    "trainer.save_freq": "train.checkpoint_every",
    "trainer.experiment_name": "name",
    "trainer.default_local_dir": "directory",
}
"""Keys of a verl configuration to those of a run."""
_EPOCHS: Final = "trainer.total_epochs"
_KL: Final = "actor_rollout_ref.actor.use_kl_loss"
_KL_WEIGHT: Final = "actor_rollout_ref.actor.kl_loss_coef"
_REST: Final = "actor_rollout_ref."


@dataclass(slots=True)
class VERL:
    """Training of weights by a configuration of verl.

    The engine is ``verl`` where verl is installed, else the default engine of agl-core, which
    trains in this process.
    """

    config: Mapping[str, Any]

    def settings(self, rows: int) -> Settings:
        """Return the settings of a run on a number of training rows.

        Keys that have no effect are named in a warning.
        """
        flat = dict(_flat(self.config))
        found = {_KEYS[key]: value for key, value in flat.items() if key in _KEYS}
        if flat.get(_KL):
            found["algorithm.kl_weight"] = flat.get(_KL_WEIGHT, 0.001)
        if _EPOCHS in flat and "train.steps" not in found:
            size = max(1, int(found.get("train.tasks_per_step", 8)))
            found["train.steps"] = max(1, rows // size) * int(flat[_EPOCHS])
        for name in ("train.eval_every", "train.checkpoint_every"):
            if name in found and int(found[name]) < 1:
                del found[name]  # verl writes -1 for never
        rest = [key for key in flat if key not in {*_KEYS, _EPOCHS, _KL, _KL_WEIGHT}]
        if find_spec("verl") is not None:
            found["engine.name"] = "verl"
            for key in [key for key in rest if key.startswith(_REST)]:
                found[f"engine.verl.{key}"] = flat[key]
                rest.remove(key)
        today = "agl.train with a run file: docs/migrate.md#verl maps each key"
        if rest:
            today += f". These have no effect: {', '.join(sorted(rest))}"
        renamed("VERL(config)", today)
        return found


@dataclass(slots=True)
class APO:
    """Optimisation of prompts by textual gradients.

    `async_openai_client` is the client of critic and editor: its ``base_url`` is used, and the key
    in the environment variable `api_key_env`.
    """

    async_openai_client: Any = None
    gradient_model: str = "gpt-5-mini"
    apply_edit_model: str = "gpt-4.1-mini"
    diversity_temperature: float = 1.0
    gradient_batch_size: int = 4
    val_batch_size: int = 16
    beam_width: int = 4
    branch_factor: int = 4
    beam_rounds: int = 3
    rollout_batch_timeout: float = 3600.0
    run_initial_validation: bool = True
    api_key_env: str = "OPENAI_API_KEY"
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further options of the optimiser ``apo``."""

    def settings(self, rows: int) -> Settings:
        """Return the settings of a run with one phase of prompts.

        Args:
            rows: Number of validation rows.

        Raises:
            ConfigError: there is no client, or it has no address.
        """
        renamed("APO(client)", 'phases = [{ optimizer = "apo", rollouts = N }]')
        children = self.beam_width * self.branch_factor
        each = self.gradient_batch_size + min(self.val_batch_size, max(1, rows // 2))
        budget = rows + self.beam_rounds * (children * each + rows)
        models = {"critic": self.gradient_model, "editor": self.apply_edit_model}
        options = {
            "gradient_batch": self.gradient_batch_size,
            "val_batch": self.val_batch_size,
            "beam_width": self.beam_width,
            "branch_factor": self.branch_factor,
            "rounds": self.beam_rounds,
            **self.options,
        }
        if "editor" not in self.options:
            options |= {role: self._model(name) for role, name in models.items()}
        return {
            "phases": [{"optimizer": "apo", "rollouts": budget}],
            "optimizers": {"apo": options},
            "rollout.timeout_s": self.rollout_batch_timeout,
        }

    def _model(self, name: str) -> dict[str, Any]:
        address = getattr(self.async_openai_client, "base_url", None)
        if address is None:
            raise ConfigError(
                "APO has no client of critic and editor: pass one with a base_url, or options="
                "{'editor': {'function': 'file.py:edit'}}"
            )
        return {
            "base_url": str(address).rstrip("/"),
            "model": name,
            "api_key_env": self.api_key_env,
            "temperature": self.diversity_temperature,
        }


def _flat(data: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in data.items():
        if isinstance(value, Mapping):
            rows += _flat(cast("Mapping[str, Any]", value), f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", value))
    return rows
