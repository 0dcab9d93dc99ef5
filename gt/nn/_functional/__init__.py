"""Families of functions of `gt.nn.functional`, a file for each. It may import `gt.functions` and below."""
