"""Serves models that see images, on a CPU: what the server has engine ``torch`` for otherwise."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from agl_torch.backend import Endpoint, TorchBackend
from agl_torch.chat.request import ChatRequest, RequestError
from agl_torch.chat.template import ChatTemplate
from agl_torch.chat.text import Vocabulary
from agl_torch.engine import thread_count
from agl_torch.models import context_length, end_tokens, load_tokenizer, without_progress_bars
from agl_torch.options import TorchOptions
from agl_torch.serving.outbox import Outbox
from agl_torch.serving.sampling import draw, sample
from agl_torch.serving.sequence import Generation, answers
from agl_torch.serving.worker import Worker
from torch import Tensor
from transformers import AutoModelForImageTextToText, DynamicCache

from agl_core.errors import AglError, ConfigError, EngineError
from agl_core.types import Policy
from agl_verl.vision import Vision

_SERVING: Final = frozenset(
    {"device", "threads", "deterministic", "max_new_tokens", "max_model_len"}
)
"""Options of engine ``torch`` that mean something here."""
_IMAGE: Final = {"type": "image"}
"""How chat templates are told of an image."""


class VisionEngine:
    """Serves policies whose model sees; their weights are float32.

    Requests are answered one after the other, the answers to one of them together. New weights
    wait for the request under way, and answer those that come later.
    """

    def __init__(self, options: TorchOptions, vision: Vision) -> None:
        """Prepare an engine; `start` loads the weights.

        Raises:
            ConfigError: an option is set that means nothing here.
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
        """Load every policy and begin to serve.

        Raises:
            ConfigError: a model cannot be loaded, or its tokenizer has no chat template.
        """
        self._worker.start()
        await self._worker.run(lambda: self._load(policies))

    async def stop(self) -> None:
        """End the thread; answers under way end with an error."""
        await self._worker.stop()

    def backend(self, policy: str) -> VisionBackend:
        return VisionBackend(self._endpoints[policy], self._worker, self._vision)

    async def load(self, policy: str, directory: str, *, version: int) -> None:
        """Answer with the weights in `directory` from the next request on.

        Raises:
            ConfigError: they are not all of this model's.
        """
        await self._worker.run(
            lambda: self._worker.lanes[policy].renew(_read(directory), version), lane=policy
        )

    def _load(self, policies: Sequence[Policy]) -> None:
        torch.set_num_threads(thread_count(self._options))
        for policy in policies:
            tokenizer = load_tokenizer(policy.model)
            template = SeeingTemplate(tokenizer, source=policy.model)
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
    """The model in a directory or on the hub.

    Raises:
        ConfigError: there is none, or weights of it are missing, which would be drawn by chance.
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


class SeeingTemplate(ChatTemplate):
    """Renders ``{"type": "image"}`` beside text; the template writes the mark that stands for it.

    Marks that are spelled out in a text stay text, as all control tokens do.
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
    """Engine ``torch``'s answers, to messages that show images."""

    def __init__(self, endpoint: Endpoint, worker: Worker[VisionLane], vision: Vision) -> None:
        super().__init__(endpoint, worker)
        self._vision = vision

    async def _encoded(self, request: ChatRequest) -> tuple[int, ...]:
        """Ids of the prompt, in which an image is as many marks as the model makes parts of it."""
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

    def _generation(self, request: ChatRequest, prompt: tuple[int, ...]) -> Generation:
        generation = super()._generation(request, prompt)
        generation.images = tuple(image.url for image in _apart(request.messages)[1])
        return generation

    def _lengths(self, images: Sequence[_Image]) -> list[int]:
        return [self._length(image) for image in images]

    def _length(self, image: _Image) -> int:
        try:
            return self._vision.lengths([image.url])[0]
        except (AglError, ValueError) as error:  # the processor's own for a strip too narrow
            raise RequestError(f"{image.place}: {error}", param="messages") from error


@dataclass(frozen=True, slots=True)
class _Image:
    place: str
    """In the request, for messages."""
    url: str


def _apart(
    messages: Sequence[Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], list[_Image]]:
    """Messages with the bare fact of an image where they show one, and the images in their order.

    Raises:
        RequestError: a part claims to be an image and has no URL.
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


class VisionLane:
    """The request that is being answered by one set of weights, and those that wait."""

    def __init__(self, model: Any, vision: Vision, *, ends: frozenset[int], version: int) -> None:
        """Create an empty lane.

        Args:
            ends: Tokens that end an answer.
            version: Of the weights.
        """
        self._model = model
        self._vision = vision
        self._ends = ends
        self._version = version
        self._waiting: deque[Generation] = deque()
        self._current: _Reading | None = None
        self.held = False
        """Start no request; the one under way goes on."""

    @property
    def busy(self) -> bool:
        return not self.resting or bool(self._waiting and not self.held)

    @property
    def resting(self) -> bool:
        return self._current is None

    def add(self, generation: Generation) -> None:
        self._waiting.append(generation)

    def renew(self, model: Any, version: int) -> None:
        """Answer with other weights."""
        assert self.resting, "the request under way would mix old and new weights"
        self._model, self._version = model, version

    def fail(self, error: EngineError, outbox: Outbox) -> None:
        """End every answer with `error` and start afresh."""
        current = [] if self._current is None else [self._current.generation]
        for generation in [*current, *self._waiting]:
            if not generation.cancelled:
                generation.cancelled = True
                outbox.put(generation, error)
        self._current = None
        self._waiting.clear()

    @torch.inference_mode()
    def step(self, outbox: Outbox) -> None:
        """Sample one token for every answer to the request whose turn it is."""
        if self._current is not None and self._current.generation.cancelled:
            self._current = None
        if self._current is None:
            self._current = self._next()
        if self._current is not None and self._current.step(self._ends, outbox):
            self._current = None

    def _next(self) -> _Reading | None:
        while self._waiting and not self.held:
            generation = self._waiting.popleft()
            if not generation.cancelled:
                generation.version = self._version
                return _Reading(self._model, self._vision, generation)
        return None


class _Reading:
    """What a model has read of a request and of its own answers, one answer a row."""

    def __init__(self, model: Any, vision: Vision, generation: Generation) -> None:
        """Read the prompt."""
        self.generation = generation
        self._model = model
        self._mark = vision.token
        self._rows = answers(generation)
        ids = torch.tensor(generation.prompt)
        images = vision.inputs(generation.images) if generation.images else {}
        places = vision.positions(ids, images)
        positions = torch.cat([torch.arange(len(ids))[None], places])[:, None]  # (4, 1, L)
        # A token of an answer goes on where the prompt ends, one further in each dimension.
        self._position = torch.cat([positions[:1, :, -1:], places.amax().expand(3, 1, 1)]) + 1
        self._cache = DynamicCache(config=model.config.get_text_config())
        logits = self._forward(ids[None], positions, **images)
        self._cache.batch_repeat_interleave(generation.n)
        self._logits = logits.expand(generation.n, -1)

    def step(self, ends: frozenset[int], outbox: Outbox) -> bool:
        """Sample a token for each answer that goes on; says whether none does any more."""
        if self._rows[0].tokens:
            self._read_last()
        sampled = sample(
            self._logits,
            [self.generation.sampling] * len(self._rows),
            [draw(row.stream) for row in self._rows],
        )
        going: list[int] = []
        for index, row in enumerate(self._rows):
            row.take(sampled.tokens[index], sampled.logprobs[index], sampled.tops[index])
            finish = row.finish(ends)
            if finish is None:
                going.append(index)
            if finish is not None or self.generation.stream:
                outbox.put(self.generation, row.piece(finish))
        if len(going) < len(self._rows):
            self._rows = [self._rows[index] for index in going]
            self._cache.batch_select_indices(torch.tensor(going, dtype=torch.long))
        return not going

    def _read_last(self) -> None:
        """Read the newest token of each answer: all are of one length."""
        ids = torch.tensor([[row.last] for row in self._rows])
        self._logits = self._forward(ids, self._position.expand(-1, len(ids), -1))
        self._position = self._position + 1

    def _forward(self, ids: Tensor, positions: Tensor, **images: Tensor) -> Tensor:
        """Logits (R, V) of what follows `ids` (R, T)."""
        output = self._model(
            input_ids=ids,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
            **images,
        )
        logits: Tensor = output.logits[:, -1]
        # No image would belong to a mark that the model itself made.
        logits[:, self._mark] = -torch.inf
        return logits
