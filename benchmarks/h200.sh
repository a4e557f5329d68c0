#!/usr/bin/env bash
# What one H200 does with real shapes; see benchmarks/h200.py, whose flags it takes. Needs Python, JAX with its CUDA
# plugin, flax, optax, jaxtyping, absl and safetensors; no network. PYTHON names another Python than python3.
#
#   --wheels=DIR   wheels to install first, into a folder that this call removes again: those of tokamax and what it
#                  needs, say. On a machine with a network: python3 -m pip download --only-binary=:all: -d DIR --no-deps \
#                    --python-version=3.12 --platform=manylinux_2_17_x86_64 --platform=manylinux2014_x86_64 \
#                    -c constraints.txt tokamax einshape immutabledict \
#                    packaging qwix tqdm tensorboardX typeguard pydantic pydantic-core annotated-types typing-inspection
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}
arguments=()
for argument in "$@"; do
  case $argument in
    --wheels=*) wheels=${argument#--wheels=} ;;
    *) arguments+=("$argument") ;;
  esac
done
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
if [[ -n ${wheels:-} ]]; then
  compgen -G "$wheels/*.whl" >/dev/null || { echo "error: --wheels=$wheels holds no wheels" >&2; exit 2; }
  site=$(mktemp -d)
  trap 'rm -rf "$site"' EXIT
  "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$wheels"/*.whl
  export PYTHONPATH="$site:$PYTHONPATH"
fi
"$python" -m benchmarks.h200 "${arguments[@]}"
