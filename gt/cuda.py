"""``gt.cuda``: the functions of ``torch.cuda`` that scripts call. The client has no GPU; the workers have."""

from __future__ import annotations

from gt.missing import absent as _absent

__all__ = ["device_count", "empty_cache", "is_available", "manual_seed", "manual_seed_all", "synchronize"]
__getattr__ = _absent("cuda")


def is_available() -> bool:
    """Always False: the client has no GPU. Tensors are placed on the workers whatever device a script names."""
    return False


def device_count() -> int:
    """Always 0: the client has no GPU."""
    return 0


def empty_cache() -> None:
    """Do nothing: workers manage their own memory."""


def synchronize(device: object = None) -> None:
    """Wait until the workers have finished everything submitted so far."""
    from gt.client.stream.connect import session

    session().worker_stats()


def manual_seed(seed: int) -> None:
    """Set the seed of all random numbers; the same as `gt.manual_seed`."""
    from gt.client.tensor.random_state import manual_seed

    manual_seed(seed)


manual_seed_all = manual_seed
