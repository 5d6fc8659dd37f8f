"""Prints the bytes that one update adds to this process's memory at its peak.

Run as a program, so that nothing else is in the process:
``python peak_memory.py MODEL TRAINED_TOKENS``
"""

from __future__ import annotations

import asyncio
import re
import sys
from array import array
from pathlib import Path

from agl_torch.engine import TorchEngine
from agl_torch.losses.cross_entropy import CrossEntropy
from agl_torch.options import TorchOptions

from agl_core.interfaces import AlgorithmSetup
from agl_core.types import Batch, Policy


def chain(count: int) -> Batch:
    """One call of one prompt token and `count` trained ones."""
    return Batch(
        policy="p",
        step=0,
        tokens=array("i", [index % 200 for index in range(count)]),
        parents=array("i", range(-1, count - 1)),
        positions=array("i", range(count)),
        nodes=array("i", range(count)),
        targets=array("i", [(index + 1) % 200 for index in range(count)]),
        advantages=array("f", [1.0] * count),
        weights=array("f", [1.0] * count),
        logprobs=array("f", [-1.0] * count),
        temperatures=array("f", [1.0] * count),
        calls=array("i", [0] * count),
        call_ids=("call-0",),
        versions=(0,),
        agents=("writer",),
        groups=array("i", [0]),
    )


def memory(name: str) -> int:
    """Bytes that /proc says of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


async def measure(model: str, count: int) -> int:
    setup = AlgorithmSetup(name="sft", loss_factory=CrossEntropy, lr=1e-3)
    engine = TorchEngine(TorchOptions(device="cpu", threads=1, dtype="float32"), setup)
    await engine.start([Policy(name="p", model=model, trainable=True)])
    try:
        await engine.update(chain(64))  # so that gradients and moments are there
        forget_peak()
        before = memory("VmRSS")
        await engine.update(chain(count))
        return memory("VmHWM") - before
    finally:
        await engine.stop()


if __name__ == "__main__":
    print(asyncio.run(measure(sys.argv[1], int(sys.argv[2]))))  # noqa: T201
