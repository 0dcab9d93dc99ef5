"""The auto-shard benchmarks: the cases, their timing, the report, and the system they run on."""
