"""What the processes of GT say to each other: messages, their encoding, transports, large values, authentication.

The package imports `gt.ops` and `gt.types`. It knows nothing of clients, dispatchers or workers.
"""
