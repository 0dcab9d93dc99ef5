"""Commands for a running system: ``python -m gt.scripts.top``, ``python -m gt.scripts.trace``.

They import `gt.events` and what is below it; never a role.
"""
