"""Starting processes: the automatic local system, systems on several hosts, and what a server or worker sets up for its
process.

The package imports only `gt.errors`, `gt.say`, `gt.version` and `gt.wire`.
"""
