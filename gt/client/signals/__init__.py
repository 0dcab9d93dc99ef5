"""Signals: entering and leaving them, and reading their configuration from YAML, the environment and the program.

It imports `gt.client.stream`.
"""
