"""The worker: runs the instructions that the dispatcher sends, on one device.

`core` decides and is pure; `shell` has the socket and the clock; `engines`, `collectives`, `hot` and `tracing` do the
work. The package imports `gt.ops`, `gt.wire` and the modules below them, never the client or the dispatcher.
"""
