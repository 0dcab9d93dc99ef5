"""Commands: ``top``, ``trace`` and ``visualize`` for a running system, ``bench`` and ``demo`` for the repository.

``gt top`` is ``python -m gt.scripts.top``. They import `gt.events` and what is below it; never a role.
"""
