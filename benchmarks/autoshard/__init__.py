"""The auto-shard benchmarks: what is run, how it is timed, how it is shown, and the system it runs on."""
