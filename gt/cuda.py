"""What scripts ask of ``torch.cuda``: a client has no GPU of its own, and its workers need not be asked."""

from __future__ import annotations

from gt.missing import absent as _absent

__all__ = ["device_count", "empty_cache", "is_available", "manual_seed", "manual_seed_all", "synchronize"]
__getattr__ = _absent("cuda")


def is_available() -> bool:
    """Whatever the workers have: tensors go there anyway, so ``"cpu"`` is as good as any name."""
    return False


def device_count() -> int:
    return 0


def empty_cache() -> None:
    """Workers keep their own house."""


def synchronize(device: object = None) -> None:
    """Wait until the workers have done all that was asked of them so far."""
    from gt.client.stream.connect import session

    session().worker_stats()


def manual_seed(seed: int) -> None:
    from gt.client.tensor.random_state import manual_seed

    manual_seed(seed)


manual_seed_all = manual_seed
