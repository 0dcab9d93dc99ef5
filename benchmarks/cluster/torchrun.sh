#!/usr/bin/env bash
# Runs a suite on several nodes: the same command on each of them.
#   NODES=2 HEAD=first-node:29500 benchmarks/cluster/torchrun.sh distributed [options of the suite]
# Suites: distributed, transformer, node (see benchmarks/README.md). Only the first rank writes records.
#   NODES       number of nodes (default 1, which needs no HEAD)
#   HEAD        host and port of the first node, which all of them can reach
#   RANKS       processes on each node (default: one for each GPU, otherwise 1)
#   RUN_ID      equal on all nodes of a run, different in runs at the same time (default: gt-bench)
#   LOCAL_ADDR  this node's address, if the others cannot resolve its host name
#   PYTHON      the interpreter (default: python3)
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
python="${PYTHON:-python3}"
nodes="${NODES:-1}"

usage() { sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

case "${1:-}" in
    distributed) program=("$root/benchmarks/distributed/distributed_benchmarks.py") ;;
    transformer) program=("$root/benchmarks/transformer/benchmark.py") ;;
    node) program=(-m benchmarks.node) ;;
    -h | --help)
        usage
        exit 0
        ;;
    *)
        echo "error: no suite '${1:-}'; one of distributed, transformer, node" >&2
        usage >&2
        exit 2
        ;;
esac
shift
if [ "$nodes" -gt 1 ] && [ -z "${HEAD:-}" ]; then
    echo "error: NODES=$nodes needs HEAD=HOST:PORT, the address of the first node" >&2
    exit 2
fi

if ! ranks="${RANKS:-$("$python" -c 'import torch; print(max(1, torch.cuda.device_count()))')}"; then
    echo "error: $python has no torch: name one that has with PYTHON=…" >&2
    exit 2
fi
if [ "$nodes" -gt 1 ]; then
    launch=(--nnodes "$nodes" --rdzv-backend c10d --rdzv-endpoint "$HEAD" --rdzv-id "${RUN_ID:-gt-bench}")
    if [ -n "${LOCAL_ADDR:-}" ]; then
        launch+=(--local-addr "$LOCAL_ADDR")
    fi
else
    launch=(--standalone)
fi
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" -m torch.distributed.run "${launch[@]}" --nproc-per-node "$ranks" "${program[@]}" "$@"
