"""Images in prompts: the positions of their tokens, and token ids that distinguish images."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, cast

from agl_core.errors import CaptureError
from agl_core.types import Image, Ints, ModelCall

_MEDIA = ("image", "audio", "video", "file")
"""Words in the types of message parts other than text, such as ``image_url``, ``input_audio``."""


class ImageNumbers:
    """Numbers for images, so that the tokens of different images differ.

    All image tokens of a prompt have the same placeholder id. It is replaced by -1 - i for the i-th
    image, so that two prompts share a prefix exactly where they show the model the same content.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, int], int] = {}

    def ids(self, prompt: Ints, images: Sequence[Image]) -> Ints:
        """Return the ids of a prompt, with image tokens replaced by the number of their image."""
        if not images:
            return prompt
        numbered = prompt[:]
        for image in images:
            number = self._numbers.setdefault((image.url, image.length), len(self._numbers))
            numbered[image.start : image.start + image.length] = (
                array("i", [-1 - number]) * image.length
            )
        return numbered

    @property
    def urls(self) -> tuple[str, ...]:
        """The content of each image, by its number."""
        return tuple(url for url, _ in self._numbers)


def images_of(call: ModelCall, *, where: str) -> list[Image]:
    """Return the images in a call's messages, in the order of its prompt.

    Raises:
        CaptureError: the call has a part that cannot be trained on, or its tokens do not state the
            positions of its images.
    """
    urls = [_url(part, where=where, token=call.image_token) for part in media(call)]
    if call.image_token is None:
        return []
    runs = list(_runs(call.prompt_token_ids, call.image_token))
    if len(runs) != len(urls):
        raise CaptureError(
            f"{where} shows the model {len(urls)} images, but its prompt has the tokens of "
            f"{len(runs)} (stretches of id {call.image_token}): keep the model's own marks of an "
            f"image out of texts, and serve its policy {call.policy!r} from a backend that states "
            f"one id for each part of an image"
        )
    if any(call.image_token in choice.token_ids for choice in call.choices):
        raise CaptureError(
            f"{where} was answered with an image's placeholder (id {call.image_token}), which no "
            f"image belongs to: let the backend forbid it, or do not train this agent"
        )
    return [
        Image(url=url, start=start, length=length)
        for url, (start, length) in zip(urls, runs, strict=True)
    ]


def media(call: ModelCall) -> list[Mapping[str, Any]]:
    """Return the image, audio, video and file parts of a call's messages, in their order."""
    found: list[Mapping[str, Any]] = []
    for message in call.messages:
        content: Any = message.get("content")
        parts = cast("list[Any]", content) if isinstance(content, list) else []
        found += [part for part in parts if hasattr(part, "get") and _is_medium(part)]
    return found


def _is_medium(part: Mapping[str, Any]) -> bool:
    kind = str(part.get("type", ""))
    return any(medium in kind for medium in _MEDIA)


def _url(part: Mapping[str, Any], *, where: str, token: int | None) -> str:
    kind = part.get("type")
    if token is None or kind != "image_url":
        raise CaptureError(
            f"{where} shows the model a part of type {kind!r}, of which its token ids hold a "
            f"placeholder alone, so it cannot be trained on: send the agent text, train it with an "
            f"engine and a model that see such parts, or do not train it"
        )
    given: Any = part.get(kind)
    url = given.get("url") if hasattr(given, "get") else given
    if not (isinstance(url, str) and url.startswith("data:")):
        raise CaptureError(
            f"{where} shows the model the image {str(url)[:80]!r}, whose content is not in the "
            f"request, so what the model saw is not known: send it as a data: URL"
        )
    return url


def _runs(ids: Sequence[int], token: int) -> Iterator[tuple[int, int]]:
    """Yield start and length of each run of a token."""
    start = 0
    for same, stretch in groupby(ids, key=token.__eq__):
        length = len(list(stretch))
        if same:
            yield start, length
        start += length
