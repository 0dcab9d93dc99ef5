"""Users of a shared server: what they may do, what they wait for, and the audit log.

`access` and `waits` belong to the pure core; `audit_log` belongs to the shell. Tokens and quotas are in
`gt.wire.identities`.
"""
