"""Where the arguments of the public functions of torch.distributed are, and what kind of call each of them makes."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ddpdoctor.facts import collectives
else:
    from .. import collectives

_TENSORS = ("tensor", "input_tensor", "input", "output", "tensors")
"""Names of the argument that must agree over ranks, first found."""
_PEERS = ("src", "dst", "group_src", "group_dst")
_UNEQUAL = collectives.names_with(collectives.OWN)
_ROOTED = ("gather", "scatter", "gather_object", "scatter_object_list", "broadcast_object_list")
"""Collectives whose root may be left out."""
_SPLITS = ("input_split_sizes", "output_split_sizes")
"""Rows for and from each rank, where each pair of ranks may exchange another number of them."""
_GATHERERS = {
    "all_gather": "tensor_list",
    "all_gather_into_tensor": "output_tensor",
    "all_gather_single": "output_tensor",
}
"""What gives each rank the tensors of all, and the argument that takes them."""
_SCATTERERS = {
    "reduce": "tensor",
    "reduce_scatter": "output",
    "reduce_scatter_tensor": "output",
    "reduce_scatter_single": "output",
}
"""What gives each rank another part of a sum, or one rank all of it, and the argument that takes it."""


class Spec:
    """Where the arguments of one public function are."""

    def __init__(self, name: str, places: dict[str, int], defaults: dict[str, Any]) -> None:
        self.name = name
        self.places = places
        self.defaults = defaults
        # An object may be a tensor, and another one on each rank.
        self.tensor = (
            next((each for each in _TENSORS if each in places), None) if "object" not in name else None
        )
        self.peers = [each for each in _PEERS if each in places]
        self.two_sided = name in collectives.POINT_TO_POINT
        self.sends = "send" in name
        # Groups are counted by the ranks that they are made of: some ranks may leave groups out that others make, and
        # the numbers of their other calls have to fit all the same.
        self.makes = name in collectives.GROUP_MAKERS
        self.compared = name not in _UNEQUAL
        self.rooted = name in _ROOTED
        self.gathered = _GATHERERS.get(name)
        self.scattered = _SCATTERERS.get(name)
        self.settles = name == "barrier"
        self.splits = _SPLITS if all(each in places for each in _SPLITS) else None
        self.lone = (
            self.tensor is not None
            and places[self.tensor] == 0
            and not (self.peers or self.rooted or self.makes or self.two_sided)
        )
        """It is asked for with a tensor before all else, and no rank is named."""
        self.reduction = defaults.get("op")


def read_spec(func: Any) -> Spec:
    """Return where the arguments of a public function are."""
    inner = func
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    code = inner.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    given = inner.__defaults__ or ()
    first = code.co_argcount - len(given)
    defaults = {code.co_varnames[first + place]: value for place, value in enumerate(given)}
    return Spec(func.__name__, {name: place for place, name in enumerate(names)}, defaults)
