"""Loading models: in any thread, whatever other threads load."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from agl_torch import models  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

THREADS = 4
LOADS = 6
"""Of each thread."""


class Overlaps:
    """Stands where transformers loads a model, and counts the loads that are under way at once."""

    def __init__(self) -> None:
        self.most = 0
        self._inside = 0
        self._count = threading.Lock()
        self._load: Callable[..., Any] = AutoModelForCausalLM.from_pretrained

    def __call__(self, source: str, **options: Any) -> Any:
        with self._count:
            self._inside += 1
            self.most = max(self.most, self._inside)
        try:
            return self._load(source, **options)
        finally:
            with self._count:
                self._inside -= 1


def load_many(source: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], int]:
    """Models that several threads load at once, and how many loads overlapped at most."""
    overlaps, start = Overlaps(), threading.Barrier(THREADS, timeout=60)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", overlaps)

    def load(_: int) -> list[Any]:
        start.wait()
        cpu = torch.device("cpu")
        return [models.load_model(source, dtype=torch.float32, device=cpu) for _ in range(LOADS)]

    with ThreadPoolExecutor(THREADS) as pool:
        loaded = [model for many in pool.map(load, range(THREADS)) for model in many]
    return loaded, overlaps.most


def test_models_load_in_several_threads_at_once(
    model_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D5: none is left on the meta device, and transformers loads one at a time."""
    loaded, most = load_many(model_path, monkeypatch)
    assert len(loaded) == THREADS * LOADS
    first = loaded[0].state_dict()
    for model in loaded:
        tensors = model.state_dict()
        assert not [name for name, tensor in tensors.items() if tensor.is_meta]
        assert all(torch.equal(first[name], tensor) for name, tensor in tensors.items())
    assert most == 1
    assert torch.empty(1).device.type == "cpu"
