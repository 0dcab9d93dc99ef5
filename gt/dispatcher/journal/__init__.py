"""The journal: what a server needs to go on where a killed one has stopped.

These files may import `gt.wire`, `gt.ops` and the dispatcher.
"""
