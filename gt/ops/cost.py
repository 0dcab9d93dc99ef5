"""How long a call takes, estimated from its signature."""

from __future__ import annotations

from gt.ops.signature import Signature
from gt.types import TensorType

#: Estimated microseconds that every call takes.
MIN_CALL_US = 4.0


def estimate(signature: Signature) -> float:
    """Microseconds: the minimum of a call, plus the bytes at 10 GB/s, plus the op's declared flops at 50 GFLOP/s.

    The estimate is at most ten seconds. A call that needs more will fail, and must not distort the accounts.
    """
    if signature.op.view:
        return MIN_CALL_US
    types = [t for t in (*signature.ins, *signature.outs) if isinstance(t, TensorType)]
    flops = signature.op.flops(*signature.ins, **dict(signature.attrs)) if signature.op.flops else 0
    work = sum(t.nbytes for t in types) * 5 + flops
    return MIN_CALL_US + min(work, 500_000_000_000) / 5e4
