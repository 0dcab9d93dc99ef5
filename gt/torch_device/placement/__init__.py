"""Where the tensors of a program of torch are: signals, modules that a configuration names, files that workers read.

It may import `gt.torch_device.backend` and `gt.torch_device.handles`.
"""
