"""The tensor a user holds: its cell, views, the tape, emitting instructions, arguments, printing, placement.

It imports `gt.client.stream` and `gt.client.signals`. Most methods are attached by `gt.functions.methods`.
"""
