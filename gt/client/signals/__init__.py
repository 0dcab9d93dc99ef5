"""Signals: reading their configuration, and entering and leaving them. May import `gt.client.stream`."""
