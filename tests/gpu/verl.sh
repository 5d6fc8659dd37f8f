#!/usr/bin/env bash
# Trains examples/03_verl_cpu with verl on the machine's GPU, or on its CPU where there is none, and
# checks what came of it.
#   tests/gpu/verl.sh [FILE]     the run's figures go to FILE, verl.json by default
# AGL_DEVICE=cpu or cuda chooses; AGL_MODEL names other weights than the example's, which are trained
# at the rate AGL_LR (1e-6); AGL_STEPS (30) is the number of steps, of which fewer than 30 only show
# that it runs; AGL_DRY=1 prints the settings alone; PYTHON names the interpreter, of an environment
# with agl-core[openai,verl], and with verl[vllm] for a GPU.
set -euo pipefail
cd "$(dirname "$0")/../.."
python="${PYTHON:-python3}"
figures="${1:-verl.json}"
steps="${AGL_STEPS:-30}"
if [ -z "${AGL_DEVICE:-}" ]; then
  AGL_DEVICE="$("$python" -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")')"
fi
directory="$(mktemp -d)"
trap 'rm -rf "$directory"' EXIT
settings=(--set "engine.device=$AGL_DEVICE" --set "directory=$directory" --set "train.steps=$steps")
if [ -n "${AGL_MODEL:-}" ]; then
  # The example's own rate is for a model of a few thousand weights and would spoil a real one.
  settings+=(--set "model=$AGL_MODEL" --set "algorithm.lr=${AGL_LR:-1e-6}")
fi
if [ -n "${AGL_DRY:-}" ]; then
  printf '%s\n' "${settings[@]}"
  exit
fi
export PYTHONPATH="$PWD:$PWD/trainers:$PWD/integrations:$PWD/plugins:$PWD/examples${PYTHONPATH:+:$PYTHONPATH}"
"$python" -m agl_core.cli train examples/03_verl_cpu/run.toml "${settings[@]}" --json "$figures"
"$python" - "$figures" "$steps" "${AGL_MODEL:-}" <<'CHECK'
import json
import sys

report = json.load(open(sys.argv[1], encoding="utf-8"))
steps, tiny = int(sys.argv[2]), not sys.argv[3]
first, last = report["reward"]["first"], report["reward"]["last"]
trained = report["policies"]["trained"]
print(f"reward {first:.3f} -> {last:.3f}; rows {report['rows']['by_agent']}; lost {report['lost']}")
print(f"{report['seconds_per_step']:.2f} s per step, {report['wall_s']:.0f} s in all")
assert len(report["steps"]) == steps, "a step is missing"
assert set(report["rows"]["by_agent"]) == {"writer"}, "another agent than the writer was trained"
assert trained["sha256_before"] != trained["sha256_after"], "no weight has changed"
assert not tiny or steps < 30 or last > first + 0.25, "the reward did not climb"
CHECK
