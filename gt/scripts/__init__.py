"""Commands: ``top`` and ``trace`` for a running system, ``bench`` and ``demo`` for the programs of the repository.

``gt top`` is ``python -m gt.scripts.top``. They import `gt.events` and what is below it; never a role.
"""
