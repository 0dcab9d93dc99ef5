#!/usr/bin/env bash
# Makes the records of the machine suites anew on this machine's GPUs, from a clean checkout, and checks each of them.
#   benchmarks/records_gpu.sh [FOLDER]      about 10 minutes on one H200 (default folder: benchmarks/results/new)
# A figure in a README names its record: replace both. PYTHON names the interpreter (default: python3).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-python3}"
folder="$PWD/${1:-benchmarks/results/new}"

if [ -n "$(git status --porcelain --untracked-files=no)" ]; then
    echo "error: files differ from the commit; a record of them is not valid: commit them first" >&2
    exit 2
fi
gpus="$("$python" -c 'import torch; print(torch.cuda.device_count())')"
if [ "$gpus" = 0 ]; then
    echo "error: torch sees no GPU" >&2
    exit 2
fi
torchrun=("$python" -m torch.distributed.run --standalone)
suite=benchmarks/distributed/distributed_benchmarks.py
train=(benchmarks/transformer/run_benchmark.sh --results-dir "$folder" --amp-dtype bf16)
m60=(--d-model 512 --nhead 8 --num-encoder-layers 6 --num-decoder-layers 6 --dim-feedforward 2048)
m220=(--d-model 768 --nhead 12 --num-encoder-layers 12 --num-decoder-layers 12 --dim-feedforward 3072)
b3=(--d-model 2048 --nhead 32 --num-encoder-layers 24 --num-decoder-layers 24 --dim-feedforward 8192)
export PYTHON="$python"

"${torchrun[@]}" --nproc_per_node="$gpus" "$suite" --batch-size 24 --output-dir "$folder"
if [ "$gpus" = 1 ]; then # two ranks on one GPU: the path works and every collective is exact; not valid as a measurement
    "${torchrun[@]}" --nproc_per_node=2 "$suite" --benchmark comm --nccl-log --sizes 1K 16K 256K 1M 4M 16M \
        --warmup 3 --iters 10 --output-dir "$folder"
fi
"${train[@]}" --batch-size 256 --num-samples 20480 "${m60[@]}"
"${train[@]}" --engine gt --batch-size 256 --num-samples 20480 "${m60[@]}"
"${train[@]}" --batch-size 128 --num-samples 8192 "${m220[@]}"
"${train[@]}" --batch-size 8 --seq-len 512 --num-samples 320 "${b3[@]}"
"$python" benchmarks/quick_benchmark.py --gpus "$gpus" --output-dir "$folder"

# every record: by its schema, its figures from its samples, its verdict; then the health of the cards
"$python" -m benchmarks.core.audit "$folder"/*.json
grep -h -A 30 '"health": {' "$folder"/*.json | sort | uniq -c | sort -rn | head -40 || true
"$python" benchmarks/transformer/compare_results.py "$folder" --allow-different
