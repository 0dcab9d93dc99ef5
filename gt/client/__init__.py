"""The client: what runs in the user's process. It turns calls of ops into a stream of instructions and reads values.

Its packages import downwards only: compile, grad, tensor, signals, stream. Below them are `gt.ops` and `gt.wire`.
"""
