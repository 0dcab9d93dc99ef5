"""Starting processes: the automatic local system, and what a server or worker sets up for its process.

The package imports only `gt.errors` and `gt.say`.
"""
