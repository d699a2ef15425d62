"""Names of the tensors that an optimizer steps, from the models that they belong to."""

from __future__ import annotations

from ..core import describe
from ..models import prints, tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ddpdoctor.facts import training_rows
else:
    from .. import training_rows


def name_tensors(
    module: Any,
    number: int,
    owners: dict[int, int],
    names: dict[int, tuple[str, int]],
    extra: list[tuple[Any, str, int]],
    models: dict[int, str],
    gathered: dict[int, Any],
) -> None:
    """Name the tensors of one model, where the optimizer has any of its parameters.

    Args:
        module: The model.
        number: Of it.
        owners: Ids of the optimizer's parameters.
        names: Id of a tensor -> its name and model; filled.
        extra: Tensors that the optimizer does not have, with name and model; filled.
        models: Number of a model -> its class; filled.
        gathered: Id of a parameter that fully_shard has gathered -> the shard that the optimizer has.
    """
    own = [(name, gathered.get(id(each), each)) for name, each in tree.list_parameters(module)]
    if not any(id(each) in owners for _, each in own):
        return
    models[number] = describe.name_type(type(module))
    for name, each in own:
        if id(each) in owners:
            names.setdefault(id(each), (name, number))
        elif id(each) not in names:
            names[id(each)] = (name, number)
            extra.append((each, name, number))
    for name, each in tree.list_buffers(module):
        if id(each) not in names:
            names[id(each)] = (name, number)
            extra.append((each, name, number))


def make_row(tensor: Any, name: str, model: int, kind: str, known: int) -> training_rows.TensorRow:
    """Return what is written down of a tensor itself."""
    return training_rows.TensorRow(
        name[:200],
        kind,
        model,
        [int(size) for size in tensor.shape],
        str(tensor.dtype).rpartition(".")[2],
        bool(tensor.requires_grad),
        known,
        prints.explain_unreadable(tensor),
    )
