"""A vLLM server as a process, started as docs/vllm.md tells."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

from tests.extras.vllm.tiny_model import CONTEXT_LENGTH, RANK

ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}
QUIET = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
NAME = "tiny"
COMMAND = ("-m", "vllm.entrypoints.openai.api_server")
FLAGS = {
    "--served-model-name": NAME,
    "--host": "127.0.0.1",
    "--max-model-len": str(CONTEXT_LENGTH),
    "--enable-lora": "",
    "--max-loras": "2",
    "--max-lora-rank": str(RANK),
    "--dtype": "float32",
    "--enforce-eager": "",
    "--enable-auto-tool-choice": "",
    "--tool-call-parser": "hermes",
}
SAMPLED = "generation_tokens_total"
START_S = 900
"""vLLM imports torch and itself three times, one process after the other."""


class VllmServer:
    """One server for all tests."""

    def __init__(self, model: str, log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.model = model
        self.url = f"http://127.0.0.1:{self._port}"
        self.base_url = f"{self.url}/v1"
        self.ready_s = 0.0
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        began = time.monotonic()
        flags = [part for pair in FLAGS.items() for part in pair if part]
        line = [sys.executable, *COMMAND, "--model", self.model, "--port", str(self._port), *flags]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                line,
                env={**os.environ, **ENVIRONMENT, **QUIET},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        while not self._healthy():
            if self._process.poll() is not None or time.monotonic() - began > START_S:
                raise RuntimeError(f"vLLM did not start:\n{self.tail()}")
            time.sleep(0.5)
        self.ready_s = time.monotonic() - began

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def tail(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def _healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=5.0).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False


def counted(metrics: str, name: str) -> float:
    """A metric of the server, summed over its models."""
    rows = re.findall(rf"^vllm:{name}(?:\{{.*\}})? (\S+)$", metrics, re.MULTILINE)
    return sum(float(value) for value in rows)
