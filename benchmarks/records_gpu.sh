#!/usr/bin/env bash
# Makes records anew on this machine's GPUs, from a clean checkout, and checks each of them.
#   benchmarks/records_gpu.sh [FOLDER [PART…]]     default: benchmarks/results/new, and the parts of the machine suites
# Seconds of each part on one H200, beside those of the start:
#   distributed 75   every part of the distributed suite, a rank on each GPU
#   shared      35   collectives of two ranks on one GPU (machines with one GPU only)
#   captured    40   collectives in CUDA graphs, on all GPUs, and of two ranks on one GPU
#   replay      15   a recorded training step of two ranks, and its replay, also in CUDA graphs
#   60m 50, 60m-gt 60, 220m 60, 2.9b 50    training of the transformer suite, of this many parameters, one under GT
#   quick       20   auto-sharding
# These take about 8 minutes. The parts about GT have to be named:
#   steps       repeated steps: training of small and large models, forward passes, decoding
#   more-steps  the other programs, with the same rows
#   mini-gpt    the Mini-GPT alone, with empty caches and a second start with full ones
#   input       training from a DataLoader
#   sharded     fully sharded training on two workers, which share one GPU if there is only one
# If a run was cut off, run the parts that are missing, with the same FOLDER and commit.
# A figure in a README names its record: replace both. PYTHON names the interpreter (default: python3).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-python3}"
machine=(distributed shared captured replay 60m 60m-gt 220m 2.9b quick)
all=("${machine[@]}" steps more-steps mini-gpt input sharded)
folder="${1:-benchmarks/results/new}"
case "$folder" in /*) ;; *) folder="$PWD/$folder" ;; esac
parts=("${@:2}")
[ ${#parts[@]} -gt 0 ] || parts=("${machine[@]}")
for part in "${parts[@]}"; do
    if [[ " ${all[*]} " != *" $part "* ]]; then
        echo "error: no part $part; the parts are ${all[*]}" >&2
        exit 2
    fi
done

if [ -n "$(git status --porcelain --untracked-files=no)" ]; then
    echo "error: files differ from the commit; a record of them is not valid: commit them first" >&2
    exit 2
fi
gpus="$("$python" -c 'import torch; print(torch.cuda.device_count())')"
if [ "$gpus" = 0 ]; then
    echo "error: torch sees no GPU" >&2
    exit 2
fi
export PYTHON="$python"

suite() { # RANKS [OPTION…]: the distributed suite
    "$python" -m torch.distributed.run --standalone --nproc_per_node="$1" \
        benchmarks/distributed/distributed_benchmarks.py "${@:2}" --output-dir "$folder"
}

train() { # [OPTION…]: the transformer suite
    benchmarks/transformer/run_benchmark.sh --results-dir "$folder" --amp-dtype bf16 "$@"
}

steps() { # PROGRAM…: the rows of repeated steps, warmed up at the same time
    "$python" benchmarks/compilation_benchmark.py --together --rounds 7 \
        --rows torch-best template compiled decorated --only "$@" --output-dir "$folder"
}

small=(--sizes 1K 16K 256K 1M 4M 16M --warmup 3 --iters 10)
m60=(--d-model 512 --nhead 8 --num-encoder-layers 6 --num-decoder-layers 6 --dim-feedforward 2048)
m220=(--d-model 768 --nhead 12 --num-encoder-layers 12 --num-decoder-layers 12 --dim-feedforward 3072)
b3=(--d-model 2048 --nhead 32 --num-encoder-layers 24 --num-decoder-layers 24 --dim-feedforward 8192)

# two ranks on one GPU: the path works and every collective is exact; not valid as a measurement
record() {
    case "$1" in
        distributed) suite "$gpus" --batch-size 24 ;;
        shared) [ "$gpus" != 1 ] || suite 2 --benchmark comm --nccl-log "${small[@]}" ;;
        captured)
            suite "$gpus" --benchmark comm --cuda-graph --sizes 1K 16K 256K 4M 64M
            [ "$gpus" != 1 ] || suite 2 --benchmark comm --cuda-graph "${small[@]}"
            ;;
        replay)
            mkdir -p "$folder/recorded"
            rm -f "$folder/recorded/step2.json"
            suite 2 --benchmark training --model tiny --warmup 3 --iters 10 --record "$folder/recorded/step2.json"
            for way in "" --cuda-graph; do
                suite 2 --benchmark replay --replay "$folder/recorded/step2.json" ${way:+"$way"} --warmup 3 --iters 10
            done
            ;;
        60m) train --batch-size 256 --num-samples 20480 "${m60[@]}" ;;
        60m-gt) train --engine gt --batch-size 256 --num-samples 20480 "${m60[@]}" ;;
        220m) train --batch-size 128 --num-samples 8192 "${m220[@]}" ;;
        2.9b) train --batch-size 8 --seq-len 512 --num-samples 320 "${b3[@]}" ;;
        quick) "$python" benchmarks/quick_benchmark.py --gpus "$gpus" --output-dir "$folder" ;;
        steps) steps mini-gpt mlp-sgd convnet resnet18-forward bert-forward decode ;;
        more-steps) steps resnet18 bert vit lstm decode-16 ;;
        mini-gpt)
            "$python" benchmarks/compilation_benchmark.py --only mini-gpt --cold --rounds 7 \
                --rows torch-best compiled decorated --output-dir "$folder"
            ;;
        input) "$python" benchmarks/input_pipeline.py --output-dir "$folder" ;;
        sharded)
            GT_SHARE_GPUS=1 GT_NCCL_SHARED=1 "$python" benchmarks/sharding.py --only exposed --output-dir "$folder"
            ;;
    esac
}

for part in "${parts[@]}"; do
    echo "== $part"
    record "$part"
done

# every record: by its schema, its figures from its samples, its verdict; then the health of the cards, and a page
"$python" -m benchmarks.core.audit "$folder"/*.json
grep -h -A 30 '"health": {' "$folder"/*.json | sort | uniq -c | sort -rn | head -40 || true
if compgen -G "$folder/bench_*.json" >/dev/null; then
    "$python" benchmarks/transformer/compare_results.py "$folder" --allow-different
fi
"$python" benchmarks/report.py "$folder" --output-dir "$folder"
