"""``@gt.compile``: recording a function, and replaying it as one fragment.

It may import everything else in the client, and `gt.amp`.
"""
