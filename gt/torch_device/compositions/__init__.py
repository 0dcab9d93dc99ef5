"""Overloads of ATen that are functions of GT with other arguments, or several instructions: a table, and families.

It may import `gt.torch_device.backend`, `gt.torch_device.fallback`, `gt.torch_device.gradients` and
`gt.torch_device.views`.
"""
