#!/usr/bin/env bash
# The full comparison of 1 GPU against all 8 of this machine: bash benchmarks/launch_8gpu_benchmark.sh [more arguments]
# GT_BENCH_GPUS sets the numbers of workers, GT_BENCH_PORT the port, PYTHON the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-$(if [ -x .venv/bin/python ]; then echo .venv/bin/python; else echo python3; fi)}
read -r -a GPUS <<<"${GT_BENCH_GPUS:-1 8}"
exec "$PYTHON" benchmarks/quick_benchmark.py --gpus "${GPUS[@]}" --port "${GT_BENCH_PORT:-9000}" "$@"
