#!/usr/bin/env bash
# Submits a run to a Ray cluster and follows it until it ends.
#   RAY_API_SERVER_ADDRESS=http://HEAD:8265 deploy/ray/submit.sh FOLDER [options of agl train]
# FOLDER holds run.toml and the files that it names; Ray takes a copy to the cluster. `directory` in
# run.toml is an absolute path that every node shares: each of them writes a part of a checkpoint.
# AGL_API_KEY goes along where it is set, as a store, gateway or runners elsewhere need it; whoever may
# look at the cluster's dashboard can read it there.
set -euo pipefail
folder="${1:?name the folder of run.toml: submit.sh FOLDER [options of agl train]}"
shift
if [ ! -f "$folder/run.toml" ]; then
  echo "There is no $folder/run.toml" >&2
  exit 2
fi
environment="$(python3 -c 'import json, os
key = os.environ.get("AGL_API_KEY")
print(json.dumps({"env_vars": {"AGL_API_KEY": key} if key else {}}))')"
exec ray job submit --working-dir "$folder" --runtime-env-json "$environment" -- agl train run.toml "$@"
