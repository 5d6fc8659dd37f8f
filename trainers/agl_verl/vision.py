"""What a model is shown beside text: images as its tensors, and the positions of their tokens."""

from __future__ import annotations

import base64
import inspect
from collections.abc import Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from agl_core.errors import ConfigError, TrainingError

_GRID: Final = "image_grid_thw"
_WHITE: Final = (255, 255, 255)
BLANK: Final = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAFklEQVR4nGP8//8/AwMDEwMDAwMDAwAkBgMB"
    "/DXemwAAAABJRU5ErkJggg=="
)
"""A small white image."""
_BROKEN: Final = (ValueError, SyntaxError, OSError, OverflowError, MemoryError)
"""What Pillow raises of files that are no images, or were cut off, or made to harm."""
_SEEN: Final = 256
"""Images whose tensors are kept: a conversation shows the same one in each of its calls."""


class Vision:
    """How models with rotary positions in time, height and width see: Qwen's VL models, GLM-4V..."""

    def __init__(self, model: str, config: Any) -> None:
        """Take over a model's image processor, without its weights.

        Raises:
            ConfigError: the model's directory holds no image processor.
        """
        from transformers import AutoModel  # noqa: PLC0415

        # Beside the other Auto classes it asks for torchvision, which it does without.
        from transformers.models.auto.image_processing_auto import (  # noqa: PLC0415
            AutoImageProcessor,
        )

        try:
            self._processor: Any = AutoImageProcessor.from_pretrained(model)
        except (OSError, ValueError, ImportError) as error:
            raise ConfigError(
                f"Model {model!r} sees images, but its image processor cannot be loaded: {error}"
            ) from error
        with torch.device("meta"):
            self._shape: Any = AutoModel.from_config(config)
        self.token = int(config.image_token_id)
        """Stands in a prompt for each part of an image."""
        self._merged = int(config.vision_config.spatial_merge_size) ** 2
        self._tensors = lru_cache(_SEEN)(self._processed)

    def inputs(self, urls: Sequence[str]) -> dict[str, Tensor]:
        """Images in the order of the prompt as the model takes them: ``pixel_values``, their grids.

        Args:
            urls: One ``data:`` URL at least.

        Raises:
            TrainingError: one holds no image.
        """
        found = [self._tensors(url) for url in urls]
        return {name: torch.cat([each[name] for each in found]) for name in found[0]}

    def lengths(self, urls: Sequence[str]) -> list[int]:
        """Tokens of each image in a prompt."""
        return [int(self._tensors(url)[_GRID].prod()) // self._merged for url in urls]

    def positions(self, ids: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """Positions (3, L) in time, height and width of the tokens `ids` (L,).

        Args:
            inputs: What `inputs` gave for the images in `ids`; empty where there are none.
        """
        if not inputs:
            return torch.arange(len(ids)).expand(3, -1)
        asked: dict[str, Any] = {"input_ids": ids[None], _GRID: inputs[_GRID]}
        takes = inspect.signature(self._shape.get_rope_index).parameters
        if "mm_token_type_ids" in takes:  # since transformers 5.3
            asked["mm_token_type_ids"] = (ids[None] == self.token).int()
        places, _ = self._shape.get_rope_index(**asked)
        return places[:, 0]

    def save(self, directory: Path) -> None:
        """Write the image processor beside weights."""
        self._processor.save_pretrained(str(directory))

    def _processed(self, url: str) -> dict[str, Tensor]:
        found = self._processor(images=[_image(url)], return_tensors="pt")
        return {name: found[name] for name in ("pixel_values", _GRID)}


def vision_of(model: str, *, trust_remote_code: bool = False) -> Vision | None:
    """How a model sees; None where it reads text alone, or sees in a way that is not known here.

    Raises:
        ConfigError: its image processor cannot be loaded.
    """
    from transformers import AutoConfig  # noqa: PLC0415
    from transformers.models.auto.modeling_auto import MODEL_MAPPING  # noqa: PLC0415

    config: Any = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
    known: Any = MODEL_MAPPING
    made = known.get(type(config), None)
    grids = hasattr(made, "get_rope_index") and hasattr(config, "image_token_id")
    return Vision(model, config) if grids and hasattr(config, "vision_config") else None


def vocab_size_of(model: str, *, trust_remote_code: bool = False) -> int:
    """Token ids of a model are below it."""
    from transformers import AutoConfig  # noqa: PLC0415

    config: Any = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
    return int(config.get_text_config().vocab_size)


def _image(url: str) -> Any:
    """The picture in a ``data:`` URL in RGB, what is transparent in it white.

    Raises:
        TrainingError: there is none.
    """
    from PIL import Image  # noqa: PLC0415

    head, _, content = url.partition(",")
    if not head.startswith("data:") or not head.endswith(";base64"):
        raise TrainingError(f"{url[:40]!r} is no data:...;base64 URL of an image")
    try:
        image = Image.open(BytesIO(base64.b64decode(content, validate=True)))
        image.load()
    except (*_BROKEN, Image.DecompressionBombError) as error:
        raise TrainingError(f"A URL of type {head!r} holds no image: {error}") from error
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        shown = image.convert("RGBA")
        below = Image.new("RGBA", shown.size, _WHITE)
        image = Image.alpha_composite(below, shown)
    return image.convert("RGB")
