"""``@gt.compile``: records a function and replays it without its Python. May import all of `gt.client`, and `gt.amp`."""
