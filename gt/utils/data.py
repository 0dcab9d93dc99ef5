"""``gt.utils.data``: only an error, because datasets and loaders are torch's or any iterable."""

from gt.missing import absent as _absent

_absent("utils.data")
