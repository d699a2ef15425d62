"""Whether a model has layers of BatchNorm: their running means are buffers, which a wrapper sends before a forward."""

from __future__ import annotations

import re

from ddpdoctor.source.resolve.kinds import Kinds
from ddpdoctor.source.resolve.names import Scope
from ddpdoctor.source.resolve.values import Value
from ddpdoctor.source.resolve.walking import find_keyword, is_true, names_in

WITH_NORMS = re.compile(
    r"torchvision\.models\.(\w+\.)?(resnet|resnext|wide_resnet|densenet|mobilenet|efficientnet|googlenet|inception"
    r"|shufflenet|mnasnet|regnet)"
)
"""Models of torchvision all of which have it."""


def has_norms(model: Value) -> bool:
    """Whether a model that is made in the files, or in torchvision, has such layers; False where it cannot be told."""
    if model.kind != "model":
        return False
    if model.owner is None and WITH_NORMS.match(model.name):
        return True
    made = model.owner.node if model.owner is not None else model.call
    return any(name.startswith("BatchNorm") for name in names_in(made))


def wraps_norms(wrapped: Value) -> bool:
    """Whether all that a wrapper may hold has such layers."""
    return bool(wrapped.inner) and all(map(has_norms, wrapped.inner))


def sends_buffers(wrapped: Value) -> bool:
    """Whether each rank has to come to the forwards of a wrapped model: torch broadcasts its buffers before them.

    Source: ``DistributedDataParallel.will_sync_module_buffers``. In evaluation it is so for the first forward after a
    training step, whatever ``no_grad`` and ``eval`` say.
    """
    given = (
        find_keyword(wrapped.call, "broadcast_buffers", 4),
        find_keyword(wrapped.call, "forward_sync_buffers"),
    )
    alone = find_keyword(wrapped.call, "process_group", 6) is not None
    on = all(each is None or is_true(each) for each in given)
    return on and not alone and wraps_norms(wrapped)


def speaks_of_sync(module: Scope, kinds: Kinds) -> bool:
    """Whether a program speaks of BatchNorm that is synchronized across ranks, or keeps its statistics."""
    words = ("syncbatchnorm", "sync_batchnorm", "syncbn", "sync_bn", "eval_bn", "freeze_bn")
    return any(
        word in name.lower()
        for member in kinds.programs.members(module)
        for name in names_in(member.node)
        for word in words
    )
