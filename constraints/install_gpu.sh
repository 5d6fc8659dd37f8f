#!/usr/bin/env bash
# Installs agl-core with verl, vLLM and FlashAttention on a Linux machine with NVIDIA GPUs, in the
# order that they need and with the versions of constraints/gpu.txt, and then checks what it got.
#   constraints/install_gpu.sh [DIRECTORY]     of a new virtual environment, .venv by default
# PYTHON names the interpreter, of Python 3.12; AGL_EXTRAS ("openai") names further extras of agl-core;
# AGL_FLASH_ATTN=0 leaves FlashAttention out, which is compiled and needs nvcc; MAX_JOBS is the number
# of its compilers; AGL_DRY=1 prints the commands alone.
set -euo pipefail
cd "$(dirname "$0")/.."
directory="${1:-.venv}"
python="${PYTHON:-python3.12}"
own="$directory/bin/python"
driver=580

run() {
  printf '%q ' "$@"
  echo
  if [ -z "${AGL_DRY:-}" ]; then "$@"; fi
}

fail() {
  echo "$1" >&2
  exit 1
}

if [ -z "${AGL_DRY:-}" ]; then
  command -v nvidia-smi >/dev/null || fail "nvidia-smi is missing: install NVIDIA's driver first"
  found="$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)"
  [ "${found%%.*}" -ge "$driver" ] || fail "The driver is $found, but CUDA 13 needs $driver or later"
  "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' \
    || fail "$python is not Python 3.12, for which constraints/gpu.txt is resolved: set PYTHON"
fi
run "$python" -m venv "$directory"
run "$own" -m pip install --upgrade pip
# torch first, so that nothing brings a build for another CUDA; FlashAttention last, as it is compiled
# against the torch that is there.
run "$own" -m pip install -c constraints/gpu.txt torch
run "$own" -m pip install -c constraints/gpu.txt -e ".[torch,verl,vllm,${AGL_EXTRAS:-openai}]" \
  'verl[vllm,cupy-cu130]'
if [ "${AGL_FLASH_ATTN:-1}" != 0 ]; then
  command -v nvcc >/dev/null || [ -n "${AGL_DRY:-}" ] \
    || fail "nvcc is missing: install the CUDA 13.0 toolkit, or set AGL_FLASH_ATTN=0"
  run "$own" -m pip install ninja packaging psutil setuptools wheel
  run "$own" -m pip install -c constraints/gpu.txt --no-build-isolation flash-attn
fi
run "$own" -m pip check
run "$own" -c 'import torch; print(torch.__version__, torch.cuda.get_device_name())'
run "$own" -m agl_core.cli plugins
