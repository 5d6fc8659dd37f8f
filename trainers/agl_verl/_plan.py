"""A run's configuration of verl and vLLM and its estimated GPU memory, before the start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import click

from agl_core.app import check_sections, engine_name, load_plugins, make_algorithm, with_weights
from agl_core.config import algorithm_phases, check_options, load_config, resolve_policies
from agl_core.errors import ConfigError
from agl_core.types import Finding
from agl_verl.memory import GB, MemoryTerm, Shape, Use, cached_tokens, parts_of, problems, totals

if TYPE_CHECKING:
    from agl_core.config import RunConfig
    from agl_core.interfaces import AttemptRecord

_ENGINE: Final = "verl"
_CHECK: Final = "verl.memory"


@dataclass(frozen=True, slots=True)
class Plan:
    """verl's configuration for a run, and the sizes for the memory estimate."""

    verl: Any
    """verl's configuration, resolved."""
    shape: Shape
    use: Use
    longest: int
    """Maximum number of tokens of a prompt with its answer that replicas serve."""
    max_tokens: int | None
    """The run's limit on tokens per answer."""


def plan_of(config: RunConfig, *, device: str) -> Plan:
    """Create the plan of a run; this machine need not have the device.

    The plan of a run with phases is that of the first, with a reference if any phase needs one.

    Raises:
        ConfigError: the run does not train with verl, its model cannot be read, verl rejects a
            value, or the limit on answers exceeds the length that replicas serve.
    """
    from transformers import AutoConfig  # noqa: PLC0415

    from agl_verl._cluster import use_platform  # noqa: PLC0415

    plugins = load_plugins(config.plugins)
    check_sections(config, plugins)
    phases = [*algorithm_phases(config).values()]
    if engine_name(config, plugins) != _ENGINE or not phases:
        raise ConfigError(f"The run does not train with verl: set engine.name = {_ENGINE!r}")
    use_platform("cpu")  # for this process, which does not compute
    from agl_verl._config import make_config, use_of  # noqa: PLC0415
    from agl_verl._engine import served_by  # noqa: PLC0415

    registry = plugins.registry("engines")
    options: Any = check_options(config.engine, registry.options_model(_ENGINE), where="engine")
    policies = [each for each in resolve_policies(config, training=True) if not each.base_url]
    policies = with_weights(policies, plugins)
    trained = next(policy for policy in policies if policy.trainable)
    setups = [make_algorithm(phase, plugins)[1] for phase in phases]
    losses = [setup.loss_factory() for setup in setups]
    setup = replace(setups[0], kl_weight=max(each.kl_weight for each in setups))
    served = served_by(policies, options, here=False)
    verl = make_config(
        options.verl,
        device=device,
        model=trained.model,
        setup=setup,
        actor=losses[0].actor,
        served=served,
    )
    try:
        shape = Shape.of(AutoConfig.from_pretrained(trained.model))
    except (OSError, ValueError) as error:
        raise ConfigError(f"Cannot load model {trained.model!r}: {error}") from error
    longest = verl.actor_rollout_ref.rollout.max_model_len or served.context or 0
    asked = config.rollout.max_tokens
    if longest and asked is not None and asked >= longest:
        raise ConfigError(
            f"Configuration: rollout.max_tokens = {asked}, but a prompt and its answer have "
            f"{longest} tokens together (verl.actor_rollout_ref.rollout.max_model_len, by default "
            f"what a row of actor.ppo_max_token_len_per_gpu holds): lower the first or raise the "
            f"others"
        )
    return Plan(verl, shape, use_of(verl, served), int(longest), asked)


def sums(plan: Plan, memory: int) -> list[str]:
    """Return the estimate as lines: each part with its formula, the sums, and the problems."""
    parts = parts_of(plan.shape, plan.use, memory)
    serving, training = totals(parts)
    lines = [
        f"{part.size / GB:8.2f} GB  {part.what}: {part.formula} ({_when(part)})"
        for part in parts
        if part.size
    ]
    cached = max(0, cached_tokens(plan.shape, plan.use, memory))
    wrong = problems(plan.shape, plan.use, memory, longest=plan.longest)
    first = (
        f"One GPU of {memory / GB:.1f} GB; P = {plan.shape.parameters / GB:.2f}e9 by the model's "
        f"shape, N = {plan.use.gpus}, T = {plan.use.micro_batch}, u = {plan.use.share:g}"
    )
    return [
        first,
        *lines,
        f"{serving / GB:8.2f} GB  while replicas serve",
        f"{training / GB:8.2f} GB  while the policy trains",
        f"{cached:,} tokens of keys and values fit into a replica",
        *(wrong or ["It fits."]),
    ]


def _when(part: MemoryTerm) -> str:
    if part.serving and part.training:
        return "always"
    return "serving" if part.serving else "training"


def own_memory() -> int | None:
    """Return the memory of this machine's first GPU; None without a GPU."""
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available():
        return None
    return int(torch.cuda.get_device_properties(0).total_memory)


@click.command(short_help="Print what a run would give verl, and the memory it would take.")
@click.argument("config_file", metavar="CONFIG")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cuda", show_default=True)
@click.option(
    "--gpu-memory",
    type=click.FloatRange(min=1),
    help="GB of one GPU; this machine's, or 80, when left out.",
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one key.")
def command(
    config_file: str, *, device: str, gpu_memory: float | None, overrides: tuple[str, ...]
) -> int:
    """Render CONFIG for verl and vLLM without a GPU, and compare it with a GPU's memory.

    Nothing is started. The output is YAML: verl's own configuration after all defaults, which its
    configuration classes have accepted, and the sums as comments. The exit status is 1 where the
    run does not fit.
    """
    from omegaconf import OmegaConf  # noqa: PLC0415

    plan = plan_of(load_config(config_file, overrides), device=device)
    click.echo(OmegaConf.to_yaml(plan.verl.actor_rollout_ref).rstrip())
    if device == "cpu":
        return 0
    memory = int(gpu_memory * GB) if gpu_memory else (own_memory() or 80 * GB)
    for line in sums(plan, memory):
        click.echo(f"# {line}")
    return 1 if problems(plan.shape, plan.use, memory, longest=plan.longest) else 0


def check(records: Sequence[AttemptRecord], config: RunConfig) -> Iterable[Finding]:
    """Report the memory estimate; nothing for other engines or without a GPU."""
    del records
    if engine_name(config, load_plugins(config.plugins)) != _ENGINE:
        return
    memory = own_memory()
    if memory is None:
        return
    plan = plan_of(config, device="cuda")
    wrong = problems(plan.shape, plan.use, memory, longest=plan.longest)
    serving, training = totals(parts_of(plan.shape, plan.use, memory))
    yield Finding.of(
        _CHECK,
        "error" if wrong else "ok",
        "; ".join(wrong)
        or f"{serving / GB:.1f} GB while replicas serve and {training / GB:.1f} GB while the policy "
        f"trains, of {memory / GB:.1f} GB.",
        fix="Lower verl.actor_rollout_ref.actor.ppo_max_token_len_per_gpu or rollout."
        "gpu_memory_utilization, or set model.lora_rank; agl verl-plan shows each part.",
        figures={"serving": serving, "training": training, "memory": memory},
    )
