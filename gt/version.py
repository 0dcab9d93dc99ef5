"""Exchanged at hello: peers of another protocol number are refused."""

VERSION = "0.1.0"
PROTOCOL = 2
