#!/usr/bin/env bash
# Checks and measures the torch engine on the machine's GPU, or on its CPU where there is none.
#   tests/gpu/run.sh [FILE]     measurements go to FILE, measurements.json by default
# AGL_DEVICE=cpu or cuda chooses; PYTHON names the interpreter.
set -euo pipefail
cd "$(dirname "$0")/../.."
python="${PYTHON:-python3}"
export AGL_MEASUREMENTS="${1:-measurements.json}"
if [ -z "${AGL_DEVICE:-}" ]; then
  AGL_DEVICE="$("$python" -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")')"
fi
export AGL_DEVICE
export PYTHONPATH="$PWD:$PWD/trainers:$PWD/integrations:$PWD/plugins:$PWD/examples${PYTHONPATH:+:$PYTHONPATH}"
"$python" -m pytest tests/gpu -q -p no:cacheprovider
cat "$AGL_MEASUREMENTS"
