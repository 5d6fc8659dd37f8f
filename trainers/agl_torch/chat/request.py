"""The request body: supported, ignored and rejected fields."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agl_core.interfaces import RAW_PROMPT
from agl_torch.chat._toolcalls import CLOSE
from agl_torch.serving.sampling import SamplingParams

_IGNORED: Final = frozenset(
    {"model", "user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier",
     "request_id", "priority"}
)  # fmt: skip
"""Fields that do not affect the answer."""

_NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "top_k": (0, -1),
    "min_p": (0,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "echo": (False,),
    "use_beam_search": (False,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}
"""Fields that are accepted only with these values."""


class RequestError(ValueError):
    """A request that cannot be answered; the backend replies with HTTP 400."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore")

    include_usage: bool = False


class CompletionRequest(BaseModel):
    """A chat completions request without the ignored fields."""

    model_config = ConfigDict(extra="forbid")

    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    tool_choice: Literal["auto", "none"] = "auto"
    parallel_tool_calls: bool = True
    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    n: int = Field(default=1, ge=1, le=128)
    seed: int | None = None
    stop: str | list[str] = Field(default_factory=list[str])
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=20)
    return_token_ids: bool = False
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict[str, Any])
    chat_template: str | None = None
    add_generation_prompt: bool | None = None
    add_special_tokens: bool = False

    @property
    def raw_prompt(self) -> str | None:
        """The whole prompt as its writer wrote it; None if the chat template writes the prompt."""
        return None if self.chat_template is None else self.messages[0]["content"]

    @property
    def uses_tools(self) -> bool:
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def stops(self) -> tuple[str, ...]:
        """Non-empty stop strings."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop
        return tuple(stop for stop in given if stop)

    @property
    def ends(self) -> tuple[str, ...]:
        """Strings that end generation: the stops and, without parallel tool calls, a call's end."""
        alone = self.uses_tools and not self.parallel_tool_calls
        return (*self.stops, CLOSE) if alone else self.stops

    def sampling(self, *, left: int, default: int) -> SamplingParams:
        """Return the sampling parameters.

        Args:
            left: Number of tokens left in the model's context.
            default: Token limit if the request does not set one.
        """
        asked = self.max_completion_tokens or self.max_tokens or default
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            max_tokens=min(asked, left),
            top_logprobs=self.top_logprobs if self.logprobs else 0,
        )


def parse_request(document: Any) -> CompletionRequest:
    """Validate a decoded request body.

    Raises:
        RequestError: a field is unknown, unsupported or malformed; the message names it.
    """
    if not isinstance(document, dict):
        raise RequestError("The request body must be a JSON object")
    fields = {name: value for name, value in document.items() if value is not None}
    for name, neutral in _NEUTRAL.items():
        if name in fields and fields[name] not in neutral:
            raise RequestError(
                f"{name}: engine 'torch' does not support {fields[name]!r}: leave it out",
                param=name,
            )
    kept = {n: v for n, v in fields.items() if n not in _IGNORED and n not in _NEUTRAL}
    if kept.get("tool_choice", "auto") not in ("auto", "none"):
        raise RequestError(
            f"tool_choice: engine 'torch' does not force tool calls, so it cannot honour "
            f"{kept['tool_choice']!r}: use 'auto' or 'none'",
            param="tool_choice",
        )
    try:
        request = CompletionRequest.model_validate(kept)
    except ValidationError as error:
        raise _refusal(error) from error
    _check_template(request)
    return request


def _check_template(request: CompletionRequest) -> None:
    """Check the fields of a raw prompt, which come together.

    Raises:
        RequestError: a field has a value that engine 'torch' does not support.
    """
    template = request.chat_template
    if template not in (None, RAW_PROMPT):
        raise RequestError(
            f"chat_template: engine 'torch' uses the model's own, not {template!r:.200}: leave it out",
            param="chat_template",
        )
    if template is None and (request.add_special_tokens or request.add_generation_prompt is False):
        raise RequestError(
            "add_generation_prompt, add_special_tokens: engine 'torch' supports them only with the "
            f"chat_template {RAW_PROMPT!r}: leave them out",
            param="add_special_tokens",
        )
    if template is not None and (
        len(request.messages) != 1
        or not isinstance(request.messages[0].get("content"), str)
        or request.tools
        or request.add_generation_prompt is not False
    ):
        raise RequestError(
            f"chat_template: {RAW_PROMPT!r} takes one message with a text, no tools and "
            f"add_generation_prompt = false",
            param="chat_template",
        )


def _refusal(error: ValidationError) -> RequestError:
    problems = error.errors(include_url=False, include_context=False)
    unknown = [str(item["loc"][0]) for item in problems if item["type"] == "extra_forbidden"]
    if unknown:
        names = ", ".join(sorted(unknown))
        return RequestError(
            f"{names}: engine 'torch' does not support this field: leave it out", param=unknown[0]
        )
    first = problems[0]
    where = ".".join(str(part) for part in first["loc"])
    return RequestError(f"{where}: {first['msg']}", param=str(first["loc"][0]))
