"""Users of a shared server: what they may do, and the audit log of it.

`access` belongs to the pure core; `audit_log` belongs to the shell. Tokens and quotas are in `gt.wire.identities`.
"""
