"""Process groups: their numbers in the ring of calls, and who is in them."""

from __future__ import annotations

from ..core import journal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_module: Any = None
"""torch.distributed.distributed_c10d, which knows the groups."""

_MESH = "mesh_"
"""What torch.distributed.device_mesh puts before the name of a dimension in the description of its group."""


class Groups:
    """The groups that a process was seen to use."""

    def __init__(self) -> None:
        self.numbers: dict[object, int] = {}
        """Name of a group -> its number; None stands for the default group."""
        self._count = 0
        self._members: dict[int, tuple[int, ...]] = {}

    def find(self, group: Any) -> int:
        """Return the number of a process group; 0 where it cannot be told."""
        if group is None:
            number = self.numbers.get(None)
            if number is not None:
                return number
            world = _find_world()
            if world is None:
                return 0
            number = self.numbers[None] = self.find(world)
            return number
        name = getattr(group, "group_name", None)
        if name is None:
            return 0
        number = self.numbers.get(name)
        return number if number is not None else self._meet(group, name)

    def find_member(self, group: int, place: int) -> int:
        """Return the global rank of a member of a group, by its number; -1 where it is not known."""
        members = self._members.get(group)
        return members[place] if members is not None and 0 <= place < len(members) else -1

    def count_members(self, group: int) -> int:
        """Return how many members a group has, by its number; 0 where that is not known."""
        return len(self._members.get(group, ()))

    def members(self, number: int) -> tuple[int, ...]:
        """Return the ranks of a group, by its number; none where they are not known."""
        return self._members.get(number, ())

    def name(self, number: int) -> str | None:
        """Return torch's name of a group."""
        return next((str(name) for name, known in self.numbers.items() if known == number and name), None)

    def forget(self) -> None:
        """The default group was made or destroyed: names of groups mean others from now on."""
        self.numbers.clear()

    def _meet(self, group: Any, name: object) -> int:
        self._count += 1
        number = self.numbers[name] = self._count
        ranks = list_members(group)
        if ranks is not None:
            self._members[number] = ranks
        journal.write(
            "group",
            {
                "number": number,
                "name": str(name),
                "description": str(getattr(group, "group_desc", "") or ""),
                "ranks": ranks,
                "backend": _read_backend(group),
                "default": group is _find_world(),
            },
        )
        return number


def take_module(module: ModuleType) -> None:
    """Remember torch.distributed.distributed_c10d."""
    global _module
    _module = module


def count_made() -> int:
    """Return how many groups torch has named by their number, which the next one's name is; -1 where it is not told."""
    count = getattr(getattr(_module, "_world", None), "group_count", None)
    return min(count, 0x7FFFFFFE) if type(count) is int else -1


def is_coalescing() -> bool:
    """Whether calls are being collected to be made as one: what each gives back is nothing to wait for."""
    return bool(getattr(getattr(_module, "_world", None), "pg_coalesce_state", None))


def find_rank() -> int:
    """Return the rank of this process; -1 where it has none."""
    try:
        return int(_module.get_rank())
    except Exception as error:
        journal.failed("group", error)
        return -1


def list_members(group: Any) -> tuple[int, ...] | None:
    """Return the ranks of a group, None where they cannot be told."""
    try:
        return tuple(int(rank) for rank in _module.get_process_group_ranks(group))
    except Exception as error:
        journal.failed("group", error)
        return None


def find_dimension(group: Any) -> str:
    """Return the name of the mesh's dimension that a group was made for; empty where it was made for none."""
    told = str(getattr(group, "group_desc", "") or "")
    return told[len(_MESH) :] if told.startswith(_MESH) else ""


def _find_world() -> Any:
    return getattr(getattr(_module, "GroupMember", None), "WORLD", None)


def _read_backend(group: Any) -> str | None:
    try:
        return str(_module.get_backend(group))
    except Exception as error:
        journal.failed("group", error)
        return None
