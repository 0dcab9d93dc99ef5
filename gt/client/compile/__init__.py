"""``@gt.compile``: records a function and replays it without its Python. May import `gt.client` and `gt.amp`."""
