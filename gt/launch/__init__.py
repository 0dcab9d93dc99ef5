"""Starting processes: the automatic local system, and settings of a process. Imports only `gt.errors` and `gt.say`."""
