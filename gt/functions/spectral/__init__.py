"""Complex numbers, Fourier transforms and windows: functions of `gt`, `gt.fft` and of tensors.

Imports what `gt.functions` imports, and the files of that folder.
"""
