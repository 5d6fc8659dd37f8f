"""The configuration models of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from agl_core.config.references import read_text
from agl_core.config.validation import folder_name, in_full, local_path
from agl_core.errors import ConfigError
from agl_core.thinking import DEFAULT_TAGS, tag_pair
from agl_core.types import FailureKind

FailureAction = Literal["drop", "penalize", "retry"]
"""What becomes of a failed attempt: left out, trained with `RolloutConfig.penalty`, or run again."""

_FAILURES: Final[Mapping[FailureKind, FailureAction]] = {
    FailureKind.AGENT: "drop",
    FailureKind.REWARD: "drop",
    FailureKind.ENGINE: "retry",
    FailureKind.DEADLINE: "drop",
    FailureKind.CONTEXT_OVERFLOW: "drop",
    FailureKind.CAPTURE: "drop",
    FailureKind.LOST: "retry",
    FailureKind.CANCELLED: "drop",
}


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class _PluginOptions(BaseModel):
    """A section whose further keys belong to the plugin named in it and are checked by its model."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    @property
    def options(self) -> dict[str, Any]:
        """The keys that are the plugin's."""
        return dict(self.model_extra or {})


class ColumnsConfig(_Config):
    """Which column of a row fills which field of a task; see "Tasks" below."""

    id: str | None = None
    """Column of the id; ``id`` when None, or the row's number where there is none."""
    input: str | None = None
    """Column of what the agent gets; ``input`` when None, or all columns where there is none."""
    expected: str | None = None
    """Column of the reference answer; ``expected`` when None."""


class TasksConfig(_Config):
    """Where the tasks come from, and the names of their columns."""

    train: str | None = None
    """``module:attribute``, ``file.py:attribute``, a file of rows such as ``tasks.jsonl``, or the
    name of a registered set of tasks, such as ``math``."""
    val: str | None = None
    """Held-out tasks, named the same way: scored before, during and after training."""
    columns: ColumnsConfig = ColumnsConfig()
    """Names of the columns, where they are not ``id``, ``input`` and ``expected``."""


class RewardConfig(_PluginOptions):
    """A reward, and the channel of its numbers."""

    name: str
    """A registered reward, or ``module:attribute`` / ``file.py:attribute`` of a callable."""
    channel: str = "main"
    """Of a bare number; a reward that returns a mapping names its channels itself."""


class TrackerConfig(_PluginOptions):
    """An experiment tracker."""

    name: str
    """A registered tracker; further keys of this table are its options."""


class PolicyConfig(_Config):
    """A named set of weights, and the agents that it serves."""

    agents: list[str] = Field(default_factory=lambda: ["*"])
    """Exact names or globs; the first policy that matches an agent serves it. Required without
    `share`."""
    model: str | None = None
    """Directory or hub name of the weights, or model name at an endpoint; `model` when None."""
    trainable: bool = False
    """Frozen policies serve and never change; their calls need no tokens."""
    train_constrained: bool = False
    """Train on answers that were sampled under a constraint (``response_format``, a forced
    ``tool_choice``, ``guided_json``, ``min_tokens`` and the like), although their log-probabilities
    are not those of the model's own distribution; False leaves such calls out."""
    base_url: str | None = Field(default=None, pattern="^https?://")
    """Address of an OpenAI-compatible endpoint, ending in ``/v1``, that serves the policy instead of
    the engine. Its calls are never trained."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the key of `base_url`; may be unset for open endpoints."""
    share: float | None = Field(default=None, ge=0, le=1)
    """Probability that the policy plays an agent in a training attempt, drawn for each attempt and
    agent from the run's seed; the first trainable policy that matches the agent plays the rest, and
    all evaluations. Its calls are never trained."""

    @model_validator(mode="after")
    def _is_one_kind(self) -> PolicyConfig:
        if self.trainable and (self.base_url is not None or self.share is not None):
            raise ValueError("a policy with base_url or share is never trained: trainable = false")
        if self.base_url is None and self.api_key_env != "OPENAI_API_KEY":  # a stored run names it
            raise ValueError("api_key_env has no effect without base_url")
        if self.share is None and "agents" not in self.model_fields_set:
            raise ValueError("agents is missing: name the agents that the policy serves")
        return self


class EngineOptions(_Config):
    """Base class of an engine's options. They are read before the engine's libraries are imported."""

    def check_model(self, model: str) -> None:
        """Check a policy's model, as far as possible without the engine's libraries.

        Default: no check.

        Raises:
            ConfigError: the model cannot be loaded.
        """


class EngineConfig(_PluginOptions):
    """What serves and trains the weights."""

    name: str | None = None
    """A registered engine; further keys of this section are its options. None: the one that the
    algorithm asks for, or else ``torch``."""


class AlgorithmConfig(_PluginOptions):
    """The algorithm, with the options that all algorithms share."""

    name: str = "grpo"
    """A registered algorithm; further keys of this section are its options."""
    lr: PositiveFloat | Literal[0] = 1e-5
    """Learning rate; 0 trains nothing, for a control run."""
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: PositiveFloat = 1.0
    """Gradients are scaled down to this norm."""
    group_size: PositiveInt = 8
    """Attempts per task and step: the group of a baseline."""
    epochs: PositiveInt = 1
    """Passes over one step's batch."""
    minibatches: PositiveInt = 1
    """Optimizer steps per pass; a group is never split."""
    kl_weight: float = Field(default=0.0, ge=0)
    """Weight of the divergence from the weights the run began with; 0 keeps no copy of them."""


class TrainConfig(_Config):
    """The steps of a training, its evaluations and its checkpoints."""

    steps: NonNegativeInt = 10
    """Updates in all, those before a resumption included; with phases the sum of theirs."""
    tasks_per_step: PositiveInt = 8
    """Each is run `algorithm.group_size` times."""
    max_staleness: NonNegativeInt = 0
    """Steps that rollouts may be begun before the weights that are trained on them are reached, so
    that slow ones delay no others. 0: every step waits for rollouts of the newest weights."""
    eval_every: NonNegativeInt = 0
    """Steps between evaluations on the validation tasks; 0: at the start and at a phase's end."""
    checkpoint_every: PositiveInt = 1
    """Steps between checkpoints; evaluated steps and the last one always get one."""
    keep_checkpoints: PositiveInt = 2
    """Newest checkpoints to keep; the best evaluated one always stays."""
    keep_tokens: NonNegativeInt = 10
    """Newest steps whose tokens are kept in ``tokens`` of the run directory, with their advantages
    and the numbers of the engine, for the dashboard; 0: none."""
    resume: bool = False
    """Continue from the newest checkpoint of the run directory."""


class RolloutConfig(_Config):
    """How attempts run, and what becomes of those that fail."""

    local: bool = True
    """Whether the trainer runs attempts itself; false leaves all of them to ``agl runner``."""
    concurrency: PositiveInt = 32
    """Attempts in flight at a time, in each process that runs some."""
    timeout_s: PositiveFloat = 300.0
    """Deadline of one attempt: of the agent, its HTTP calls and its rewards together."""
    lease_s: PositiveFloat = 30.0
    """An attempt whose worker is silent for this long is lost."""
    max_attempts: PositiveInt = 2
    """Of one rollout, the first included."""
    resume: Literal["fresh", "replay"] = "fresh"
    """``replay`` answers the calls of an attempt that follows a lost one, or one whose gateway or
    engine failed, from the record for as long as it sends the same; ``fresh`` sends every call to the model."""
    temperature: float | None = Field(default=None, ge=0)
    """Replaces the agent's own temperature in training rollouts of trained agents."""
    max_tokens: PositiveInt | None = None
    """Upper bound put on the agent's own limit for trained agents."""
    failures: dict[FailureKind, FailureAction] = Field(default_factory=lambda: dict(_FAILURES))
    """What becomes of a failed attempt; kinds left out keep their default. Retries that are used
    up are dropped."""
    penalty: float = Field(default=0.0, ge=-1e30, le=1e30)
    """Return of a penalised attempt, and score of a failed one in evaluations."""

    @field_validator("failures")
    @classmethod
    def _keep_defaults(
        cls, given: dict[FailureKind, FailureAction]
    ) -> dict[FailureKind, FailureAction]:
        return {**_FAILURES, **given}


class CaptureConfig(_Config):
    """What is recorded of attempts, and what stops a run."""

    adapter: str = "trajectory"
    """A registered adapter, which turns recorded attempts into trajectories."""
    max_error_share: float = Field(default=0.0, ge=0, le=1)
    """Share of a step's attempts that may be dropped for capture errors before the run stops."""
    reward_grace_s: float = Field(default=0.0, ge=0)
    """Rewards that come up to this long after an attempt ends still count; every step waits."""
    elsewhere: Literal["count", "refuse"] = "count"
    """What becomes of model requests to other addresses than the gateway, of agents that are not
    trained or of no agent. ``count``: they are sent, and counted as ``sent_elsewhere_…``;
    ``refuse``: they raise `CaptureError` before anything is sent."""
    allow_hosts: list[str] = Field(default_factory=list[str])
    """Hosts, or globs of hosts, that ``elsewhere = "refuse"`` does not concern."""
    thinking_tags: list[str] = Field(default_factory=lambda: list(DEFAULT_TAGS))
    """What models write their thinking in: names, as ``think`` for ``<think>``, or both tags with a
    space between them, as ``[THINK] [/THINK]``."""

    @field_validator("thinking_tags")
    @classmethod
    def _are_tags(cls, given: list[str]) -> list[str]:
        try:
            for tag in given:
                tag_pair(tag)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return given

    @model_validator(mode="after")
    def _has_use(self) -> CaptureConfig:
        if self.allow_hosts and self.elsewhere != "refuse":
            raise ValueError('allow_hosts has no effect unless elsewhere = "refuse"')
        return self


class StoreConfig(_PluginOptions):
    """The store of the records."""

    name: str = "sqlite"
    """A registered store; further keys of this section are its options."""


class GatewayConfig(_Config):
    """Where the gateway listens, and what it does when weights change."""

    url: str | None = None
    """Address of a running ``agl gateway``, as agents reach it; one is started in the trainer's
    process at `host` and `port` when None."""
    backend_host: str = "127.0.0.1"
    """Address of the trainer's machine at which the gateway at `url` reaches its engine."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: NonNegativeInt = 0
    """0: one the system chooses."""
    tls_cert: str | None = None
    """PEM file with a certificate for `host`, to serve ``https://``; clients have to trust it. With
    `url`, one for `backend_host`: the gateway reaches the engine there by ``https://``."""
    tls_key: str | None = None
    """PEM file with its key; None: it is in `tls_cert`."""
    drain_timeout_s: PositiveFloat = 60.0
    """Calls that outlive it when weights change are aborted, and retried if nothing of their answer
    had been sent."""


class EvalConfig(_Config):
    """How evaluations sample and score."""

    samples: PositiveInt = 1
    """Attempts per task; pass@k needs at least k."""
    pass_at: list[PositiveInt] = Field(default_factory=list[PositiveInt])
    """Every k to report pass@k for."""
    threshold: float = 1.0
    """An attempt passes when its score reaches this."""
    temperature: float | None = Field(default=None, ge=0)
    """Replaces the agent's own temperature in evaluations, for trained agents."""


class PromptConfig(_Config):
    """A prompt: a template that agents read, or the text that a program itself sends."""

    agents: list[str] = Field(default_factory=list[str])
    """Exact names or globs of the agents that use it; empty: it is not tuned."""
    text: str | None = None
    """The template, which the agent reads with ``agl.resource(name)``."""
    file: str | None = None
    """A text file, whose content is read as `text`."""
    captured: bool = False
    """The program sends the text itself: it is learned from the first rollouts and replaced in
    later requests."""
    tool: str = ""
    """Name of the tool whose captured description it is; empty for the system prompt."""

    @model_validator(mode="before")
    @classmethod
    def _in_full(cls, given: Any) -> Any:
        if isinstance(given, str):
            return {"text": given}
        if not isinstance(given, Mapping):
            return given
        section = dict(cast("Mapping[str, Any]", given))
        if isinstance(file := section.get("file"), str) and section.get("text") is None:
            del section["file"]
            section["text"] = read_text(Path(file), what="Prompt")
        return section

    @model_validator(mode="after")
    def _has_one_source(self) -> PromptConfig:
        if [self.text is not None, self.file is not None, self.captured].count(True) != 1:
            raise ValueError("set exactly one of text, file and captured = true")
        if self.captured and not self.agents:
            raise ValueError("a captured prompt needs agents: name those that send it")
        if self.tool and not self.captured:
            raise ValueError("tool is only for captured = true: descriptions are never templates")
        return self


class PhaseConfig(_PluginOptions):
    """A part of a run: steps of an algorithm, or rollouts of an optimiser of prompts."""

    algorithm: str | None = None
    """A registered algorithm; further keys override ``[algorithm]``."""
    steps: PositiveInt | None = None
    """Updates of this phase."""
    optimizer: str | None = None
    """A registered optimiser; further keys override ``[optimizers.NAME]``."""
    rollouts: PositiveInt | None = None
    """Budget of the optimiser."""
    prompts: list[str] = Field(default_factory=list[str])
    """Prompts that the optimiser tunes; empty: all that have agents."""

    @model_validator(mode="after")
    def _is_one_kind(self) -> PhaseConfig:
        if (self.algorithm is None) == (self.optimizer is None):
            raise ValueError("set algorithm or optimizer, not both")
        kind, size, others = ("algorithm", "steps", ("rollouts", "prompts"))
        if self.optimizer is not None:
            kind, size, others = ("optimizer", "rollouts", ("steps",))
        if getattr(self, size) is None:
            raise ValueError(f"a phase with {kind} needs {size}")
        for other in others:
            if getattr(self, other):
                raise ValueError(f"{other} does not belong to a phase with {kind}")
        return self


class RunConfig(_Config):
    """Everything a run depends on; stored with the run as it was resolved.

    Further sections are those of plugins; `agl_core.app.check_sections` checks them.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, dict[str, Any]] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    name: str = "run"
    """Identifies the run; a name whose directory holds checkpoints is accepted only to resume."""
    directory: str = "agl_runs"
    """Runs lie in ``<directory>/<name>``."""
    seed: int = 0
    """Everything random derives from it."""
    agent: str | None = None
    """``module:attribute`` or ``file.py:attribute`` of the callable that runs a task."""
    agents: list[str] = Field(default_factory=list[str])
    """Names or globs of the agents to train."""
    model: str | None = None
    """Directory or hub name of the weights for every policy that names none, or a name that
    ``agl fetch`` takes, such as ``smollm2``."""
    policies: dict[str, PolicyConfig] = Field(default_factory=dict[str, PolicyConfig])
    """Empty: ``trained`` serves `agents`, ``frozen`` everybody else, both from `model`."""
    prompts: dict[str, PromptConfig] = Field(default_factory=dict[str, PromptConfig])
    """Name to prompt; only a text is short for a template that is not tuned."""
    optimizers: dict[str, dict[str, Any]] = Field(default_factory=dict[str, dict[str, Any]])
    """Registered optimiser of prompts to its options."""
    phases: list[PhaseConfig] = Field(default_factory=list[PhaseConfig])
    """Phases in order; empty: ``train.steps`` steps of ``algorithm``."""
    prompt_budgets: dict[str, PositiveInt] = Field(default_factory=dict[str, PositiveInt])
    """Agent's name or glob to the tokens that its prompts may have, for a `PromptBudget` that
    states none; the first that matches counts."""
    tasks: TasksConfig = TasksConfig()
    rewards: list[RewardConfig] = Field(default_factory=list[RewardConfig])
    channel_weights: dict[str, float] = Field(default_factory=dict[str, float])
    """Weight of each reward channel in the return; 1 when left out."""
    engine: EngineConfig = EngineConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    train: TrainConfig = TrainConfig()
    rollout: RolloutConfig = RolloutConfig()
    capture: CaptureConfig = CaptureConfig()
    store: StoreConfig = StoreConfig()
    gateway: GatewayConfig = GatewayConfig()
    eval: EvalConfig = EvalConfig()
    trackers: list[TrackerConfig] = Field(default_factory=list[TrackerConfig])
    """Where the numbers of steps and evaluations go beside the run's own report."""
    plugins: list[str] = Field(default_factory=list[str])
    """Local plugin files to load beside the installed ones."""

    @property
    def sections(self) -> dict[str, dict[str, Any]]:
        """The sections of plugins by name, such as ``events``. A resumed run may have others."""
        return dict(self.__pydantic_extra__)

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, given: str) -> str:
        return folder_name(given)

    @field_validator("directory")
    @classmethod
    def _is_here(cls, given: str) -> str:
        return local_path(given, instead="copy what a run leaves there once it has ended")

    @field_validator("trackers")
    @classmethod
    def _named_once(cls, given: list[TrackerConfig]) -> list[TrackerConfig]:
        names = [tracker.name for tracker in given]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"the tracker {name!r} is named twice: keep one of the tables")
        return given

    @model_validator(mode="after")
    def _phases_fit(self) -> RunConfig:
        steps = sum(phase.steps or 0 for phase in self.phases)
        if self.train.steps != steps and self.phases:
            raise ValueError(
                f"train.steps = {self.train.steps}, but the phases have {steps} steps in all: "
                f"remove train.steps"
            )
        if not (self.phases or self.train.steps):
            raise ValueError("train.steps = 0: must be at least 1 in a run without phases")
        owners: dict[tuple[str, str], str] = {}
        for name, prompt in self.prompts.items():
            for key in ((agent, prompt.tool) for agent in prompt.agents if prompt.captured):
                if key in owners:
                    raise ValueError(
                        f"prompts.{owners[key]} and prompts.{name} both capture the text of agent "
                        f"{key[0]!r}: keep one of them"
                    )
                owners[key] = name
        tuned = {name for name, prompt in self.prompts.items() if prompt.agents}
        for number, phase in enumerate(self.phases):
            if phase.optimizer is not None and (not tuned or set(phase.prompts) - tuned):
                raise ValueError(
                    f"phases.{number} tunes {sorted(set(phase.prompts) - tuned) or 'no prompt'}: "
                    f"prompts with agents are {sorted(tuned)}; set prompts.NAME.agents"
                )
        return self

    @model_validator(mode="before")
    @classmethod
    def _in_full(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        data = in_full(cast("Mapping[str, Any]", given), fields=cls.model_fields)
        train, phases = data.get("train", {}), data.get("phases")
        if isinstance(train, TrainConfig):
            train = train.model_dump(exclude_unset=True)
        if phases and isinstance(phases, list) and isinstance(train, Mapping):
            steps = sum(_steps(phase) for phase in cast("list[Any]", phases))
            data["train"] = {"steps": steps, **cast("Mapping[str, Any]", train)}
        return data


def _steps(phase: Any) -> int:
    """Return the steps of a phase that is not validated yet; 0 if it has none."""
    if isinstance(phase, PhaseConfig):
        return phase.steps or 0
    steps = cast("Mapping[str, Any]", phase).get("steps") if isinstance(phase, Mapping) else 0
    return steps if isinstance(steps, int) else 0
