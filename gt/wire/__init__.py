"""The protocol between GT's processes: messages, their encoding, transports, large values, authentication.

The package imports `gt.ops`, `gt.types` and `gt.errors`. It knows nothing of clients, dispatchers or workers.
"""
