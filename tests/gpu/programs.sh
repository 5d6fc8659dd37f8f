#!/usr/bin/env bash
# Trains the programs that users know for one step, with random weights: by verl and gpu.toml in the
# shape of Qwen3-0.6B on the machine's GPU, or by run.toml in a tiny shape on its CPU.
#   tests/gpu/programs.sh [FOLDER]     figures go to FOLDER/NAME.json, programs by default
# AGL_EXAMPLES names the folders below examples/, "12_werewolf 13_sql" by default; AGL_SHAPE is one
# of tests/gpu/random_model.py; AGL_DEVICE=cpu or cuda chooses; AGL_DRY=1 prints the commands alone;
# PYTHON names the interpreter, of an environment with agl-core[agentscope,torch] and langgraph, and
# with agl-core[verl] and verl[vllm] for a GPU. It fails if a program does, or is not there.
set -euo pipefail
cd "$(dirname "$0")/../.."
python="${PYTHON:-python3}"
figures="${1:-programs}"
if [ -z "${AGL_DEVICE:-}" ]; then
  AGL_DEVICE="$("$python" -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")')"
fi
settings=(--set tasks.val=null --set train.steps=1 --set train.tasks_per_step=1)
settings+=(--set algorithm.group_size=2 --set rollout.max_tokens=16)
if [ "$AGL_DEVICE" = cpu ]; then
  file=run.toml shape="${AGL_SHAPE:-tiny}"
  settings+=(--set engine.device=cpu)
else
  file=gpu.toml shape="${AGL_SHAPE:-qwen3-0.6b}"
  settings+=(--set verl.trainer.n_gpus_per_node=1)
  settings+=(--set verl.actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384)
fi
export PYTHONPATH="$PWD:$PWD/trainers:$PWD/integrations:$PWD/plugins:$PWD/examples${PYTHONPATH:+:$PYTHONPATH}"
directory="$(mktemp -d)"
trap 'rm -rf "$directory"' EXIT
mkdir -p "$figures"
if [ -z "${AGL_DRY:-}" ]; then
  echo "random weights in the shape $shape"
  "$python" tests/gpu/random_model.py "$directory/model" "$shape"
fi
failed=()
for name in ${AGL_EXAMPLES:-12_werewolf 13_sql}; do
  if [ ! -f "examples/$name/$file" ]; then
    echo "$name: examples/$name/$file is missing"
    failed+=("$name")
    continue
  fi
  command=("$python" -m agl_core.cli train "examples/$name/$file" --set "model=$directory/model"
    --set "directory=$directory/$name" "${settings[@]}" --json "$figures/$name.json")
  if [ -n "${AGL_DRY:-}" ]; then
    printf '%s ' "${command[@]}"
    echo
    continue
  fi
  echo "$name: one step on $AGL_DEVICE"
  if ! "${command[@]}" || ! "$python" - "$figures/$name.json" <<'CHECK'; then
import json
import sys

report = json.load(open(sys.argv[1], encoding="utf-8"))
rows = report["rows"]["by_agent"]
print(f"{report['wall_s']:.0f} s; calls {report['calls']}; rows {rows}; lost {report['lost']}")
assert len(report["steps"]) == 1, "the step is missing"
assert report["calls"] > 0, "no agent has asked the model"
CHECK
    failed+=("$name")
  fi
done
if [ "${#failed[@]}" -gt 0 ]; then
  echo "failed or missing: ${failed[*]}"
  exit 1
fi
