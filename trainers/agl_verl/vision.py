"""Images as input tensors of a model, and the positions of their tokens."""

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
"""A white image of 2 x 2 pixels."""
_BROKEN: Final = (ValueError, SyntaxError, OSError, OverflowError, MemoryError)
"""Exceptions that Pillow raises for files that are not images, truncated or malicious."""
_SEEN: Final = 256
"""Size of the cache of image tensors: every call of a conversation contains the same images."""


class Vision:
    """Image inputs of models with rotary positions in time, height and width (Qwen VL, GLM-4V)."""

    def __init__(self, model: str, config: Any) -> None:
        """Load a model's image processor, and the model without weights.

        Raises:
            ConfigError: the image processor cannot be loaded.
        """
        from transformers import AutoModel  # noqa: PLC0415

        # Imported from the top level, the class requires torchvision; from this module it does not.
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
        """Id of the image placeholder token; an image has several in a prompt."""
        self._merged = int(config.vision_config.spatial_merge_size) ** 2
        self._tensors = lru_cache(_SEEN)(self._processed)

    def inputs(self, urls: Sequence[str]) -> dict[str, Tensor]:
        """Return the model's inputs for images in prompt order: ``pixel_values`` and grids.

        Args:
            urls: At least one ``data:`` URL.

        Raises:
            TrainingError: a URL does not contain an image.
        """
        found = [self._tensors(url) for url in urls]
        return {name: torch.cat([each[name] for each in found]) for name in found[0]}

    def lengths(self, urls: Sequence[str]) -> list[int]:
        """Return the number of tokens of each image in a prompt."""
        return [int(self._tensors(url)[_GRID].prod()) // self._merged for url in urls]

    def positions(self, ids: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return positions (3, L) in time, height and width of the tokens `ids` (L,).

        Args:
            inputs: Result of `inputs` for the images in `ids`; empty if there are none.
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
        """Write the image processor into the directory of the weights."""
        self._processor.save_pretrained(str(directory))

    def _processed(self, url: str) -> dict[str, Tensor]:
        found = self._processor(images=[_image(url)], return_tensors="pt")
        return {name: found[name] for name in ("pixel_values", _GRID)}


def vision_of(model: str, *, trust_remote_code: bool = False) -> Vision | None:
    """Return the image inputs of a model; None for text models and unsupported vision models.

    Raises:
        ConfigError: the image processor cannot be loaded.
    """
    from transformers import AutoConfig  # noqa: PLC0415
    from transformers.models.auto.modeling_auto import MODEL_MAPPING  # noqa: PLC0415

    config: Any = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
    known: Any = MODEL_MAPPING
    made = known.get(type(config), None)
    grids = hasattr(made, "get_rope_index") and hasattr(config, "image_token_id")
    return Vision(model, config) if grids and hasattr(config, "vision_config") else None


def vocab_size_of(model: str, *, trust_remote_code: bool = False) -> int:
    """Return the size of a model's vocabulary."""
    from transformers import AutoConfig  # noqa: PLC0415

    config: Any = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
    return int(config.get_text_config().vocab_size)


def _image(url: str) -> Any:
    """Return the image of a ``data:`` URL in RGB, with a white background.

    Raises:
        TrainingError: the URL does not contain an image.
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
