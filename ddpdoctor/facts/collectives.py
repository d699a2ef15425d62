"""What is true of torch.distributed's collectives, once: their arguments, whose sizes agree, who waits for whom.

Read from the signatures and the documentation of ``torch.distributed.distributed_c10d`` of torch 2.13; a newer
spelling of an old function is a row of its own. Processes of a job load it too: no imports.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SAME = "same"
"""The tensors of all ranks have one size."""
PARTS = "parts"
"""On the processor they have one size; NCCL takes lists whose parts differ."""
ROOT = "root"
"""The root alone holds the list of what all ranks give or get."""
OWN = "own"
"""Each rank has sizes of its own: what one sends another receives."""
NONE = "none"
"""No tensor, or objects of any size."""


class Collective:
    """One public function in which all ranks of a group take part.

    Args:
        name: of the function.
        group: place of its argument ``group``.
        sizes: `SAME`, `PARTS`, `ROOT`, `OWN` or `NONE`.
        given: place of the tensor that a rank gives; None where it gives objects, lists or nothing.
        root: name and place of the argument that names the root; None where there is none.
        operation: what it does, whatever its form: ranks that call different forms meet.
        meets: it ends on no rank before all have called it; a broadcast may end on its root.
        objects: it carries Python objects, on the current device.
    """

    __slots__ = ("given", "group", "meets", "name", "objects", "operation", "root", "sizes")

    def __init__(
        self,
        name: str,
        group: int,
        sizes: str,
        given: int | None = None,
        root: tuple[str, int] | None = None,
        operation: str = "",
        meets: bool = False,
        objects: bool = False,
    ) -> None:
        self.name, self.group, self.sizes, self.given, self.root = name, group, sizes, given, root
        self.operation = operation or name
        self.meets, self.objects = meets, objects


def _rows() -> Iterator[Collective]:
    yield Collective("all_reduce", 2, SAME, 0, meets=True)
    yield Collective("all_reduce_coalesced", 2, SAME, meets=True)
    yield Collective("broadcast", 2, SAME, 0, ("src", 1))
    yield Collective("reduce", 3, SAME, 0, ("dst", 1))
    yield Collective("all_gather", 2, PARTS, 1, meets=True)
    yield Collective("all_gather_coalesced", 2, PARTS, meets=True)
    yield Collective("all_gather_into_tensor", 2, SAME, 1, operation="all_gather", meets=True)
    yield Collective("all_gather_single", 2, SAME, 1, operation="all_gather", meets=True)
    yield Collective("reduce_scatter", 3, PARTS, meets=True)
    yield Collective("reduce_scatter_tensor", 3, SAME, 1, operation="reduce_scatter", meets=True)
    yield Collective("reduce_scatter_single", 3, SAME, 1, operation="reduce_scatter", meets=True)
    yield Collective("reduce_scatter_tensor_coalesced", 3, SAME, operation="reduce_scatter", meets=True)
    yield Collective("gather", 3, ROOT, 0, ("dst", 2))
    yield Collective("scatter", 3, ROOT, None, ("src", 2))
    yield Collective("all_to_all", 2, OWN, meets=True)
    yield Collective("all_to_all_single", 4, OWN, 1, operation="all_to_all", meets=True)
    yield Collective("barrier", 0, NONE, meets=True)
    yield Collective("monitored_barrier", 0, NONE)  # may end by an exception on those that came
    yield Collective("all_gather_object", 2, NONE, meets=True, objects=True)
    yield Collective("broadcast_object_list", 2, NONE, None, ("src", 1), objects=True)
    yield Collective("gather_object", 3, NONE, None, ("dst", 2), objects=True)
    yield Collective("scatter_object_list", 3, NONE, None, ("src", 2), objects=True)


COLLECTIVES = {row.name: row for row in _rows()}
"""Name of the function -> what is true of it."""
GROUP_MAKERS = ("new_group", "split_group", "shrink_group")
"""Functions that make one process group of a part of the ranks."""
SUBGROUP_MAKERS = ("new_subgroups", "new_subgroups_by_enumeration")
"""Functions that make several, by one call of ``new_group`` for each."""
POINT_TO_POINT = ("send", "recv", "isend", "irecv", "send_object_list", "recv_object_list")
"""Functions between two ranks."""
OPERATION_OF_BACKENDS = {
    "_all_gather_base": "all_gather_into_tensor",
    "_allgather_base": "all_gather_into_tensor",
    "ALLGATHER_coalesced": "all_gather_coalesced",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "REDUCE_SCATTER_coalesced": "reduce_scatter_tensor_coalesced",
    "all_reduce_barrier": "barrier",
    "allreduce_coalesced": "all_reduce_coalesced",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "all_to_all_v_single": "all_to_all_single",
    "all_gather_single": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "all_gather_v": "all_gather",
    "reduce_scatter_v": "reduce_scatter",
}
"""Names that backends give to what torch.distributed calls otherwise (ProcessGroupNCCL.cpp, ProcessGroupGloo.cpp)."""


def operation_of(name: str) -> str:
    """Return what a function does, whatever its form; its own name where it is no collective that is known."""
    row = COLLECTIVES.get(name)
    return row.operation if row else name


def names_with(*sizes: str) -> frozenset[str]:
    """Return the functions whose sizes are of these kinds."""
    return frozenset(row.name for row in COLLECTIVES.values() if row.sizes in sizes)
