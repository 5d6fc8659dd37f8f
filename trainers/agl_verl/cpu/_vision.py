"""The engine that serves vision models on a CPU; text models use engine ``torch``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from agl_torch.backend import Endpoint, TorchBackend
from agl_torch.chat.request import CompletionRequest, RequestError
from agl_torch.chat.template import ChatTemplate
from agl_torch.chat.text import Vocabulary
from agl_torch.engine import thread_count
from agl_torch.models import context_length, end_tokens, load_tokenizer, without_progress_bars
from agl_torch.options import TorchOptions
from agl_torch.serving.sequence import Generation
from agl_torch.serving.worker import Worker
from transformers import AutoModelForImageTextToText

from agl_core.errors import AglError, ConfigError
from agl_core.interfaces import Engine
from agl_core.types import Policy
from agl_verl.cpu._lane import VisionLane
from agl_verl.vision import Vision

_SERVING: Final = frozenset(
    {"device", "threads", "deterministic", "max_new_tokens", "max_model_len"}
)
"""Options of engine ``torch`` that this engine supports."""
_IMAGE: Final = {"type": "image"}
"""Message part for an image in chat templates."""


class VisionEngine(Engine):
    """Serves policies with vision models in float32.

    Requests are answered one after another; the choices of one request are generated together. New
    weights are used after the running request.
    """

    def __init__(self, options: TorchOptions, vision: Vision) -> None:
        """Prepare an engine; `start` loads the weights.

        Raises:
            ConfigError: an option is set that this engine does not support.
        """
        for name in sorted(options.model_fields_set - _SERVING):
            raise ConfigError(
                f"{name} is {getattr(options, name)!r}, but a model that sees images is served one "
                f"request at a time in float32: leave it out; there are {sorted(_SERVING)}"
            )
        self._options = options
        self._vision = vision
        self._worker: Worker[VisionLane] = Worker()
        self._endpoints: dict[str, Endpoint] = {}

    async def start(self, policies: Sequence[Policy]) -> None:
        """Load every policy and start to serve.

        Raises:
            ConfigError: a model cannot be loaded, or its tokenizer has no chat template.
        """
        self._worker.start()
        try:
            await self._worker.run(lambda: self._load(policies))
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop the thread; running answers fail with an error."""
        await self._worker.stop()

    def backend(self, policy: str) -> VisionBackend:
        return VisionBackend(self._endpoints[policy], self._worker, self._vision)

    async def load(self, policy: str, directory: str, *, version: int) -> None:
        """Use the weights in `directory` from the next request on.

        Raises:
            ConfigError: the model cannot be loaded, or weights are missing.
        """
        await self._worker.run(
            lambda: self._worker.lanes[policy].renew(_read(directory), version), lane=policy
        )

    def _load(self, policies: Sequence[Policy]) -> None:
        torch.set_num_threads(thread_count(self._options))
        for policy in policies:
            tokenizer = load_tokenizer(policy.model)
            template = VisionTemplate(tokenizer, source=policy.model)
            model = _read(policy.model)
            wanted = self._options.max_model_len
            self._endpoints[policy.name] = Endpoint(
                policy=policy.name,
                template=template,
                vocabulary=Vocabulary(tokenizer),
                max_model_len=context_length(model.config.get_text_config(), wanted=wanted),
                max_new_tokens=self._options.max_new_tokens,
            )
            self._worker.lanes[policy.name] = VisionLane(
                model, self._vision, ends=end_tokens(model, tokenizer), version=policy.version
            )


def _read(source: str) -> Any:
    """Load a vision model from a directory or the hub.

    Raises:
        ConfigError: it cannot be loaded, or weights are missing, which transformers would
            initialise randomly.
    """
    with without_progress_bars():
        try:
            loaded: Any = AutoModelForImageTextToText.from_pretrained(
                source, dtype=torch.float32, attn_implementation="sdpa", output_loading_info=True
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"Model {source!r} cannot be loaded: {error}") from error
    model, found = loaded
    missing = sorted(found["missing_keys"])
    if missing:
        raise ConfigError(
            f"Model {source!r} lacks {len(missing)} weights, {missing[0]!r} among them: give the "
            f"whole state of a {type(model).__name__}"
        )
    return model.eval().requires_grad_(requires_grad=False)


class VisionTemplate(ChatTemplate):
    """Renders text and ``{"type": "image"}``, for which the template writes a placeholder token.

    The placeholder's text in a message stays text, like that of all control tokens.
    """

    def _content(self, index: int, content: Any) -> Any:
        text = super()._content
        if not isinstance(content, list) or _IMAGE not in content:
            return text(index, content)
        return [
            part if part == _IMAGE else {"type": "text", "text": text(index, [part])}
            for part in content
        ]


class VisionBackend(TorchBackend):
    """Backend of engine ``torch`` with support for images."""

    def __init__(self, endpoint: Endpoint, worker: Worker[VisionLane], vision: Vision) -> None:
        super().__init__(endpoint, worker)
        self._vision = vision

    async def _encoded(self, request: CompletionRequest) -> tuple[int, ...]:
        """Return the prompt's ids, with as many placeholder tokens per image as it has tokens."""
        messages, images = _apart(request.messages)
        ids = await super()._encoded(request.model_copy(update={"messages": messages}))
        if ids.count(self._vision.token) != len(images):
            raise RequestError(
                f"messages: the model's chat template writes {ids.count(self._vision.token)} marks "
                f"for {len(images)} images: it does not show them where they are",
                param="messages",
            )
        lengths = iter(await asyncio.to_thread(self._lengths, images) if images else [])
        token = self._vision.token
        return tuple(
            each for id_ in ids for each in ([id_] if id_ != token else [token] * next(lengths))
        )

    def _generation(self, request: CompletionRequest, prompt: tuple[int, ...]) -> Generation:
        generation = super()._generation(request, prompt)
        generation.images = tuple(image.url for image in _apart(request.messages)[1])
        return generation

    def _lengths(self, images: Sequence[_Image]) -> list[int]:
        return [self._length(image) for image in images]

    def _length(self, image: _Image) -> int:
        try:
            return self._vision.lengths([image.url])[0]
        except (AglError, ValueError) as error:  # the processor raises ValueError for narrow images
            raise RequestError(f"{image.place}: {error}", param="messages") from error


@dataclass(frozen=True, slots=True)
class _Image:
    place: str
    """Path in the request, for error messages."""
    url: str


def _apart(
    messages: Sequence[Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], list[_Image]]:
    """Replace each image in the messages by `_IMAGE`; return messages and images in order.

    Raises:
        RequestError: an image part has no URL.
    """
    images: list[_Image] = []
    bare: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        content: Any = message.get("content")
        if isinstance(content, list):
            places = (f"messages[{index}].content[{place}]" for place in range(len(content)))
            content = [_part(part, next(places), images) for part in content]
        bare.append({**message, "content": content})
    return bare, images


def _part(part: Any, place: str, images: list[_Image]) -> Any:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in ("image_url", "image"):
        return part
    given = part.get("image_url")
    url = given.get("url") if isinstance(given, Mapping) else given
    if kind == "image" or not isinstance(url, str):
        raise RequestError(
            f"{place}: an image has the form "
            f'{{"type": "image_url", "image_url": {{"url": "data:image/png;base64,..."}}}}',
            param="messages",
        )
    images.append(_Image(place, url))
    return _IMAGE
