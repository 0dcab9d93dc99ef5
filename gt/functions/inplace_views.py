"""The in-place methods that change a tensor's shape and leave its elements where they are, such as ``unsqueeze_``.

The tensor becomes a view. If it is no view yet, a new object takes its place as the base: it has the tensor's value and
history. Views that were made before still name the tensor as their base; `ViewRecipe.base` leads them to the new one.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from gt.client.tensor import tape
from gt.client.tensor.emit import ViewRecipe
from gt.client.tensor.tensor import Tensor, on_cell
from gt.errors import GradError
from gt.functions import views
from gt.functions.derive import Function, with_prefix


def _in_place(function: Function) -> Function:
    @wraps(function)
    def method(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if isinstance(x._node, tape.LeafNode):
            raise GradError("a leaf Variable that requires grad is being used in an in-place operation.")
        view = function(x if x._view is not None else _base_in_place_of(x), *args, **kwargs)
        x._cell, x._type, x._view = view._cell, view._type, view._view
        tape.set_node(x, view._node, view._index)
        return x

    method.__name__ = method.__qualname__ = f"{function.__name__}_"
    method.__doc__ = with_prefix("In place: ", function.__doc__)
    return method


def _base_in_place_of(x: Tensor) -> Tensor:
    follow_new_bases()
    base = on_cell(x._cell, x._type)
    base._node, base._index = x._node, x._index
    return base


def follow_new_bases() -> None:
    """From now on, a recipe whose base became a view itself uses the object that took its place.

    The check costs time at each use of a view, so it begins with the first call of a method of this file.
    """
    slot: Any = vars(ViewRecipe)["base"]
    if isinstance(slot, property):
        return

    def base(recipe: ViewRecipe) -> Tensor:
        found: Tensor = slot.__get__(recipe)
        return found if found._view is None else found._view.base

    type.__setattr__(ViewRecipe, "base", property(base, slot.__set__))


INPLACE: dict[str, Function] = {
    f"{function.__name__}_": _in_place(function)
    for function in (views.squeeze, views.unsqueeze, views.t, views.transpose, views.swapaxes)
}
INPLACE["swapdims_"] = INPLACE["transpose_"]
