"""The data plane: moves arrays from worker to worker with collectives, never through the dispatcher.

`interface` has no dependencies. The other files may import torch, sockets and threads, and of the
rest of GT only `gt.launch.backend`.
"""
