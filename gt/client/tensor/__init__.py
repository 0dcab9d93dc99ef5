"""The tensor, the calls of ops on it, and the tape that records them. May import `gt.client.signals` and `stream`."""
