"""Snapshots on a worker: of a whole program, in shared memory, and of named tensors, on the device.

These files may import `gt.wire`, the engines, and the worker's spaces and failures.
"""
