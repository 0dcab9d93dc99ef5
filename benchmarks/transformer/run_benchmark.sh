#!/usr/bin/env bash
# Runs benchmark.py on every GPU of this machine, or on the CPU if there is none.
#   --single  one GPU only
#   --full    the full dataset: 30 GB of int64 tokens (--num-samples full)
#   --disk    read the data from shards in ./data (--data-dir data)
# Everything else goes to benchmark.py as it is. PYTHON names the interpreter (default: python3).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

options=()
for argument in "$@"; do
    case "$argument" in
        --full) options+=(--num-samples full) ;;
        --disk) options+=(--data-dir data) ;;
        -h | --help)
            sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
            echo
            options+=(--help)
            ;;
        *) options+=("$argument") ;;
    esac
done

exec "${PYTHON:-python3}" "$here/launch.py" ${options[@]+"${options[@]}"}
