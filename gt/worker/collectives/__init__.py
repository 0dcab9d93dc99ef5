"""The data plane: moves arrays from worker to worker with collectives, never through the dispatcher.

`interface` has no dependencies; the rest may import torch, sockets and threads, and nothing of GT but the interface.
"""
