"""``gt.utils.data.dataset``: torch's longer path to the names of `gt.utils.data`."""

from gt.utils.data import __getattr__ as __getattr__
