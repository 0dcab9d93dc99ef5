#!/usr/bin/env bash
# Runs a suite on the nodes of a Slurm job. Submit it from the root of the repository, which all nodes must see:
#   sbatch --nodes=2 --gpus-per-node=8 benchmarks/cluster/slurm.sh distributed [options of the suite]
# RANKS, LOCAL_ADDR and PYTHON are those of torchrun.sh, which runs once on each node; sbatch passes them on.
#SBATCH --job-name=gt-bench
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --output=gt-bench-%j.log
set -euo pipefail
if [ -z "${SLURM_JOB_ID:-}" ]; then
    echo "error: no Slurm job: submit this script with sbatch" >&2
    exit 2
fi
# sbatch runs a copy of this file, so its own folder says nothing; a job starts in the folder it was submitted from
start="$PWD/benchmarks/cluster/torchrun.sh"
if [ ! -f "$start" ]; then
    echo "error: no $start: submit this script from the root of the repository" >&2
    exit 2
fi
# a batch script runs on the first node of its job
HEAD="$(hostname):$((20000 + SLURM_JOB_ID % 10000))"
export HEAD NODES="$SLURM_JOB_NUM_NODES" RUN_ID="slurm-$SLURM_JOB_ID"
# srun does not take this over from sbatch
if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then
    export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
fi
exec srun --nodes="$NODES" --ntasks="$NODES" --kill-on-bad-exit=1 bash "$start" "$@"
