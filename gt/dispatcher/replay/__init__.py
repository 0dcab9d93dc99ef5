"""Replay of fragments: a fragment is planned once, and the cached plan is used for every repetition.

These files may import `gt.wire`, `gt.dispatcher.plan`, and the dispatcher's state, segments and instruction plans.
"""
