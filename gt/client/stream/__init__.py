"""One client's session with a server: signatures, words, templates, uploads, reads, failures, and the connection.

It imports `gt.wire` and `gt.ops`, and nothing else of the client. It knows tensors only by their ids.
"""
