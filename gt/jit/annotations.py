"""``gt.jit.annotations``: the type names that models import from here. Nothing is scripted, so they are typing's."""

from typing import Any, Dict, List, Optional, Tuple, Union  # noqa: UP035, torch's names

__all__ = ["Any", "Dict", "List", "Optional", "Tuple", "Union"]
