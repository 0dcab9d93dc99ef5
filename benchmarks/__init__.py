"""Benchmarks: each is a script; `core` has what they share. May import gt and torch; gt imports nothing from here."""
