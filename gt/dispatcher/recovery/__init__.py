"""Recovery: what the dispatcher keeps of a client's program, and how it runs the program again after a loss.

These files may import `gt.wire`, and the dispatcher's state, delivery and plans.
"""
