"""Files of torch.load that hold a model and its optimizer's state, and models that were restored from them.

What `resumes` asks where an optimizer begins anew: whether the file from which its model came holds the state of such
an optimizer, and what shows that the run resumes the earlier one. Files without an optimizer's state are not kept.
"""

from __future__ import annotations

import re
import weakref

from ..core import frames, lifetime
from . import tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType
    from typing import Any

FILES = 8
"""Most files, and most restored models, that are remembered at a time."""
LEAST = 2
"""Numbers from which on a counter is one that was resumed: programs count from 0 or from 1."""
_KEYS = 64
"""Keys of a table that are looked at."""
_VARIABLES = 200
_DEPTH = 40
"""Frames, and variables of each, among which the counter is looked for."""
_FRAMES = 8
_GROUPS, _STATE, _SCHEDULE = "param_groups", "state", "last_epoch"
_BESIDE = {"params", "param_names", "initial_lr"}
"""Keys of a group that are no settings of the optimizer's class."""
_COUNTS_FROM = {
    "start",
    "first",
    "begin",
    "initial",
    "init",
    "resume",
    "resumed",
    "current",
    "cur",
    "done",
    "next",
    "self",
}
"""Words that a program puts beside the name of a counter which it goes on from."""
_WRAPPED = re.compile(r"^(module\.|_orig_mod\.)+")


class Saved:
    """The state of one optimizer in a file."""

    def __init__(self, name: str, size: int, settings: set[str]) -> None:
        self.name = name
        self.size = size
        """How many parameters it has."""
        self.settings = settings

    def fits(self, optimizer: Any) -> bool:
        """Whether it could be loaded: as many parameters, and settings of such a class."""
        groups = optimizer.param_groups
        now = set(groups[0]) - _BESIDE
        # A newer torch has settings that an older one did not save.
        alike = self.settings <= now or now <= self.settings
        return alike and sum(len(group["params"]) for group in groups) == self.size


class File:
    """What a file holds."""

    def __init__(self, held: dict[Any, Any]) -> None:
        self.optimizers: list[Saved] = []
        self.models: list[dict[str, tuple[int, ...]]] = []
        self.counters: dict[str, int] = {}
        self.schedules: dict[str, int] = {}
        for name, value in _list_parts(held):
            self._add(name, value)

    def _add(self, name: str, value: Any) -> None:
        if type(value) is int:
            if value >= LEAST:
                self.counters[name] = value
        elif isinstance(value, dict):
            groups = value.get(_GROUPS)
            if isinstance(groups, list):
                if groups and _has_state(value.get(_STATE)):
                    size = sum(len(group["params"]) for group in groups)
                    self.optimizers.append(Saved(name, size, set(groups[0]) - _BESIDE))
            elif type(value.get(_SCHEDULE)) is int:
                if value[_SCHEDULE] >= LEAST:
                    self.schedules[name] = value[_SCHEDULE]
            elif shapes := find_shapes(value):
                self.models.append(shapes)

    def find_counter(self, optimizer: Any, frame: FrameType | None) -> str:
        """Return what of the file the program counts on from, by its variables; empty where nothing shows it.

        The innermost frame that has one decides: others may be left from before the file was read.

        Args:
            optimizer: That is about to step for the first time.
            frame: Of that step.
        """
        counters = {_bare(name.rpartition(".")[2]): (name, count) for name, count in self.counters.items()}
        for variables in _list_variables(frame):
            plans = [held for _, value in variables if (held := _read(value)).get("optimizer") is optimizer]
            if self.schedules and plans:
                at = plans[0].get(_SCHEDULE)
                return next((told[:200] for told, count in self.schedules.items() if at == count), "")
            same = [(counters[words], value) for name, value in variables
                    if type(value) is int and (words := _bare(name)) in counters]  # fmt: skip
            if same:
                fits = all(value in (count, count + 1) for (_, count), value in same)
                return same[0][0][0][:200] if fits else ""
        return ""


class Restored:
    """A model that was restored from a file."""

    def __init__(self, model: Any, file: File, stack: list[list[object]]) -> None:
        self.model = weakref.ref(model)
        self.file = file
        self.stack = stack

    def holds(self, parameters: set[int]) -> bool:
        """Whether it holds one of some parameters, given by their id."""
        model = self.model()
        return model is not None and any(id(each) in parameters for _, each in tree.list_parameters(model))


files: list[File] = []
restored: list[Restored] = []


def note_file(_: Any, frame: FrameType, args: tuple[Any, ...]) -> None:
    """Remember what torch.load has read, where that holds the state of an optimizer.

    The frame is one of torch.serialization, where a file has been read.
    """
    held = frame.f_locals.get("result")
    if not isinstance(held, dict) or _GROUPS in held:
        return
    file = File(held)
    if file.optimizers and file.models:
        files[:] = [*files[1 - FILES :], file]


def note_load(model: Any, given: Any, complete: bool, frame: FrameType | None) -> None:
    """Remember that a model was restored from a file; called at the end of load_state_dict where there are `files`.

    Args:
        model: Into which it was loaded.
        given: State that was loaded into it.
        complete: It has all names of the model, and no others.
        frame: Of the caller.
    """
    restored[:] = [each for each in restored if each.model() not in (None, model)]
    shapes = find_shapes(given) if complete else None
    if shapes is None:
        return
    file = next((each for each in reversed(files) if shapes in each.models), None)
    if file is not None and len(restored) < FILES:
        restored.append(Restored(model, file, frames.list_own(frame, _FRAMES)))


def take_restored(optimizer: Any) -> Restored | None:
    """Return the restored model of an optimizer whose file holds the state of such an optimizer; it is forgotten."""
    parameters = {id(each) for group in optimizer.param_groups for each in group["params"]}
    for each in restored:
        if any(saved.fits(optimizer) for saved in each.file.optimizers) and each.holds(parameters):
            restored.remove(each)
            return each
    return None


def find_shapes(state: dict[Any, Any]) -> dict[str, tuple[int, ...]] | None:
    """Return the shapes of a model's state by name, without the prefixes of wrappers; None where it is none."""
    shapes = {
        _WRAPPED.sub("", str(name)): tuple(value.shape)
        for name, value in state.items()
        if hasattr(value, "shape") and hasattr(value, "requires_grad")
    }
    return shapes if shapes and 2 * len(shapes) >= len(state) else None


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child starts anew."""
    files.clear()
    restored.clear()


def _list_parts(held: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what stands in a file under which name: also in lists, and in tables that are no state themselves."""
    for name, value in list(held.items())[:_KEYS]:
        yield str(name), value
        if isinstance(value, (list, tuple)):
            yield from ((str(name), each) for each in value[:_KEYS] if isinstance(each, dict))
        elif isinstance(value, dict) and _GROUPS not in value and _SCHEDULE not in value:
            inner = list(value.items())[:_KEYS]
            if not any(hasattr(each, "shape") for _, each in inner):
                yield from ((f"{name}.{key}", each) for key, each in inner)


def _has_state(state: Any) -> bool:
    """Whether there is something for a parameter: SGD without momentum has tables of nothing."""
    return isinstance(state, dict) and any(
        isinstance(each, dict) and any(value is not None for value in each.values())
        for each in state.values()
    )


def _bare(name: str) -> frozenset[str]:
    """Return the words of a counter's name, without those that tell where counting starts."""
    words = frozenset(re.split(r"[_\W]+", name.lower())) - {""}
    return words - _COUNTS_FROM or words


def _list_variables(frame: FrameType | None) -> Iterator[list[tuple[str, Any]]]:
    """Yield the variables of each of the program's frames, with attributes of the object whose method it is."""
    looked = 0
    while frame is not None and looked < _DEPTH:
        if frames.is_own(frame):
            held = dict(frame.f_locals)
            yield [*list(held.items())[:_VARIABLES], *list(_read(held.get("self")).items())[:_VARIABLES]]
        frame = frame.f_back
        looked += 1


def _read(value: Any) -> dict[str, Any]:
    """Return the attributes that an object holds itself; nothing of the program's is called for that."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return {}
    return held if type(held) is dict else {}
