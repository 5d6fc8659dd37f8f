"""The folder of a run's token streams: which steps are kept, and where a call is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from agl_streams._file import CallTokens, TokenFile

FOLDER: Final = "tokens"
"""In the run's directory."""
SUFFIX: Final = ".tokens"
TOKENIZERS: Final = "tokenizer"
_STEP: Final = re.compile(r"step-(\d{6,})")


def step_name(step: int) -> str:
    """Return the folder's name of a step, which people count from 1."""
    return f"step-{step:06d}"


class StreamFolder:
    """The token streams of a run. Files may come and go while it is read."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.path = run / FOLDER

    def steps(self) -> dict[int, Path]:
        """Return the folders of the steps that are kept, oldest first."""
        try:
            found = [(_STEP.fullmatch(path.name), path) for path in self.path.iterdir()]
        except OSError:
            return {}
        return dict(sorted((int(match[1]), path) for match, path in found if match))

    def files(self, step: int) -> list[TokenFile]:
        """Return the readable files of a step, one per policy, by the policy's name."""
        paths = sorted((self.path / step_name(step)).glob(f"*{SUFFIX}"))
        return [file for path in paths if (file := TokenFile.try_read(path)) is not None]

    def call(self, call_id: str, *, step: int | None = None) -> list[CallTokens]:
        """Return the trained choices of a call; none if its step is not kept, or was not trained.

        Only the headers of files without the call are read.

        Args:
            call_id: The call's id.
            step: Where to look first, counted from 1.

        Raises:
            StoreError: the file with the call is damaged.
        """
        for file in self._by_step(step):
            if found := file.call(call_id):
                return found
        return []

    def _by_step(self, first: int | None) -> Iterator[TokenFile]:
        steps = sorted(self.steps(), key=lambda step: (step != first, -step))
        for step in steps:
            yield from self.files(step)

    def tokenizer(self, policy: str, model: str = "") -> Path | None:
        """Return the ``tokenizer.json`` of a policy: the run's copy, a checkpoint's or the model's.

        Args:
            policy: The policy's name.
            model: Directory of its weights, if known.
        """
        kept = self.path / TOKENIZERS / f"{policy}.json"
        return kept if kept.is_file() else tokenizer_source(self.run, policy, model)


def tokenizer_source(run: Path, policy: str, model: str) -> Path | None:
    """Return a ``tokenizer.json`` of a policy outside the folder of token streams."""
    checkpoints = sorted((run / "checkpoints").glob("step-*"), reverse=True)
    places = [Path(model)] if model else []
    places += [path / "policies" / policy for path in checkpoints]
    return next((file for each in places if (file := each / "tokenizer.json").is_file()), None)
