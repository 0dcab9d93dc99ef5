"""``--threads``: the share of a machine that a worker uses."""

import os

from tests.support.processes import System

PRODUCTS = """
x, w = gt.randn(1024, 512), gt.randn(512, 512)
x.sum().item()
say("ready")
go()
for _ in range(3):
    y = gt.nn.functional.linear(x, w)
say("difference", round(float((y - x @ w.T).abs().max().item())))
go()
"""


def test_a_worker_of_one_thread_computes_with_one(stack):
    """Some libraries that torch calls ignore torch's own setting."""
    system = System(stack)
    worker = system.worker("--threads", "1")
    client = system.client(PRODUCTS)
    client.expect("ready")
    before = len(os.listdir(f"/proc/{worker.pid}/task"))
    client.tell()
    client.expect("difference 0")
    assert len(os.listdir(f"/proc/{worker.pid}/task")) == before
    client.tell()
    assert client.end() == 0
