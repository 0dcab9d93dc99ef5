"""The client: a user's Python, turned into a stream of instructions. See the floors in `tests/test_floors.py`.

`stream` sends instructions and reads values, `signals` names where they run, `tensor` is what the user holds, `grad`
computes gradients, `compile` records functions. Each imports only the ones before it, `gt.ops` and `gt.wire`.
"""
