#!/usr/bin/env bash
# Runs what `make gpu` runs on a machine without network: with its own python3, whose torch is for its GPU, and the wheels
# that `python -m benchmarks.bare_gpu` has put into build/wheels. The options are those of `python -m benchmarks.gpu`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
python3 -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --target "$site" build/wheels/*.whl
export PYTHONPATH="$site:$PWD/proto:$PWD/services:$PWD/actor:$PWD/learner:$PWD"
python3 -m benchmarks.gpu "$@"
