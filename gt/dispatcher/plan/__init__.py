"""Planning: layouts, moves between them, and the choice of how an op is split, as pure functions of types and layouts.

These files know no client and no message queue. They may import `gt.ops`, `gt.types`, `gt.errors` and the message types
of `gt.wire`, and nothing else of `gt.dispatcher`.
"""
