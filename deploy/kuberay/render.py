# ruff: noqa: INP001 - a script, not a package
"""Print the manifest of a run on Kubernetes: KubeRay trains, pods of their own run the agents.

::

    python deploy/kuberay/render.py FOLDER --trainer-image A --runner-image B | kubectl apply -f -

FOLDER holds ``run.toml`` and the files that it names, up to the 1 MiB that a ConfigMap takes.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from pathlib import Path
from string import Template
from typing import Any

from ruamel.yaml import YAML

from agl_core.app import check_sections, load_plugins
from agl_core.config import RunConfig
from agl_core.config.loader import load_config
from agl_core.errors import AglError, ConfigError

_MANIFEST = Path(__file__).with_name("manifest.yaml")
_RUN = "run.toml"
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
"""Of services; the run's own name."""
_CPUS_PER_GPU = 4
"""verl reserves three beside a device, and a server takes one."""
_MOST_BYTES = 1024 * 1024
"""Of a ConfigMap."""


def main(arguments: list[str] | None = None) -> int:
    """Render what the command line asks for; 2 where the folder's run cannot go there."""
    given = _parser().parse_args(arguments)
    try:
        sys.stdout.write(render(given))
    except AglError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def render(given: argparse.Namespace) -> str:
    """The manifest as YAML text.

    Raises:
        ConfigError: the run's file is wrong or means another place, or the folder is too large.
    """
    config = load_config(given.folder / _RUN)
    check_sections(config, load_plugins(config.plugins))
    _check(config)
    cpus = max(given.cpus or 0, _CPUS_PER_GPU * given.gpus)
    values = {**vars(given), "name": config.name, "cpus": cpus}
    filled = Template(_MANIFEST.read_text(encoding="utf-8")).substitute(values)
    program = io.StringIO()
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False
    writer.dump(_program(given.folder, config.name), program)
    return f"{program.getvalue()}---\n{filled}"


def _check(config: RunConfig) -> None:
    name = config.name
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"name = {name!r} in {_RUN} cannot name services: take up to 40 small letters, digits "
            f"and hyphens, a letter first"
        )
    wanted = {
        "directory": (config.directory, "/agl_runs"),
        "store.name": (config.store.name, "http"),
        "store.url": (config.store.options.get("url"), f"http://{name}-store:8701"),
        "gateway.url": (config.gateway.url, f"http://{name}-gateway:8702"),
        "rollout.local": (config.rollout.local, False),
    }
    wrong = [
        f"{key} is {found!r}, but has to be {right!r} there"
        for key, (found, right) in wanted.items()
        if found != right
    ]
    if wrong:
        raise ConfigError(f"{_RUN} does not fit the manifest: {'; '.join(wrong)}")


def _program(folder: Path, name: str) -> dict[str, Any]:
    """The folder's files, as the ConfigMap that pods mount at ``/program``."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    size = sum(path.stat().st_size for path in files)
    if size > _MOST_BYTES:
        raise ConfigError(
            f"{folder} holds {size} bytes, but a ConfigMap takes {_MOST_BYTES}: put large files "
            f"into the images or on the shared volume, and name them in {_RUN} by absolute paths"
        )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{name}-program", "labels": {"app": name}},
        "data": {path.name: path.read_text(encoding="utf-8") for path in files},
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="holds run.toml and the files that it names")
    parser.add_argument("--trainer-image", required=True, help="has agl-core[verl], Ray and vLLM")
    parser.add_argument(
        "--runner-image", required=True, help="has agl-core and what the agent needs"
    )
    parser.add_argument("--ray-version", default="2.60.0", help="of the trainer's image")
    parser.add_argument("--secret", default="agl", help="holds AGL_API_KEY under the key 'key'")
    parser.add_argument("--nodes", type=int, default=1, help="pods with GPUs")
    parser.add_argument("--gpus", type=int, default=8, help="of each of them")
    parser.add_argument("--cpus", type=int, help="of each; 4 for every GPU at least")
    parser.add_argument("--memory", default="512Gi", help="of each")
    parser.add_argument("--runners", type=int, default=4, help="pods that run agents")
    parser.add_argument("--runs-storage", default="500Gi", help="for checkpoints, shared")
    parser.add_argument("--store-storage", default="50Gi", help="for the records")
    return parser


if __name__ == "__main__":
    sys.exit(main())
