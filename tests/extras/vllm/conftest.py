"""One vLLM server on the CPU, and our gateway in front of it."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)

from agl_endpoints import HttpBackend
from agl_vllm import VllmControl

from tests.core.gateway.conftest import World, make_world, world  # noqa: F401 - fixtures
from tests.extras.vllm.tiny_model import make_model
from tests.extras.vllm.vllm_server import VllmServer
from tests.extras.vllm.vllm_site import FIGURES, Site

FILE = "AGL_VLLM_FIGURES"
"""Environment variable: where to write what was measured."""


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not FIGURES:
        return
    report = {"machine": _machine(), **FIGURES}
    terminalreporter.section("vLLM")
    terminalreporter.write_line(json.dumps(report, indent=1))
    if os.environ.get(FILE):
        Path(os.environ[FILE]).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _machine() -> dict[str, Any]:
    rows = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [row.partition(":")[2].strip() for row in rows if row.startswith("model name")]
    return {
        "platform": platform.platform(),
        "processor": next(iter(names), platform.processor()),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": [round(load, 1) for load in os.getloadavg()],
    }


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="session")
def server(directory: Path) -> Iterator[VllmServer]:
    model = make_model(directory / "old", seed=0)
    found = VllmServer(model, directory / "vllm.log")
    try:
        found.start()
        FIGURES["ready_s"] = round(found.ready_s, 1)
        yield found
    finally:
        found.stop()


@pytest.fixture
async def control(server: VllmServer) -> AsyncIterator[VllmControl]:
    async with VllmControl(server.base_url) as found:
        yield found


@pytest.fixture
async def site(world: World, server: VllmServer) -> AsyncIterator[Site]:  # noqa: F811
    found = Site(world, server, HttpBackend(server.base_url))
    await found.serve(1)
    yield found
    await found.backend.close()
