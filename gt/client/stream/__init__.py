"""The stream of instructions from one client to its server, and the replies: sessions, signatures, templates, reads.

It knows tensors only by their ids, and imports no other package of the client.
"""
