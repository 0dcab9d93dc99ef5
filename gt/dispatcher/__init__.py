"""The dispatcher: it rewrites the clients' instruction streams, with placements and moves, for the workers.

Everything here is pure (events in, actions out) except `server.py`, which owns the sockets and the clock. The package
may import `gt.ops`, `gt.wire`, `gt.types`, `gt.errors`, `gt.version` and `gt.say`; never the client, the
worker or a tensor library.
"""
