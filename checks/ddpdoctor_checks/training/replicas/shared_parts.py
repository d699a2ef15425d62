"""Parameters that ranks hold alike beside parts of their own of one model, and that part."""

from __future__ import annotations

from dataclasses import replace

from ddpdoctor.evidence.training.fingerprints import StepLook, TensorLook
from ddpdoctor_checks.training.replicas.models import Replica


def find_shared_diverged(replica: Replica) -> tuple[StepLook, StepLook] | None:
    """Return the first step, and the first look at which parameters differ that began equal; of these alone.

    Of a model of which ranks hold different parts from the beginning. A parameter counts only where its own module has
    no part that began apart: the bias of a sharded layer begins with zeros on every rank, and is sharded with it.
    """
    looks = [look for look in replica.looks if look.tensors]
    start = next((look for look in looks if look.step == 1), None)
    if start is None:
        return None
    apart = {_name_module(each.name) for each in start.tensors if len(each.values) > 1}
    if start.differing > len(start.tensors):
        apart.add(_name_module(start.tensors[-1].name))  # of which the rest is not listed
    equal = {each.name for each in start.tensors if len(each.values) == 1 and len(each.gradients) > 1}
    shared = {name for name in equal if _name_module(name) not in apart}
    for look in looks:
        told = tuple(each for each in look.tensors if each.name in shared and len(each.values) > 1)
        if told and apart and not look.final:
            names = {each.name for each in told}
            began = tuple(each for each in start.tensors if each.name in names)
            return _keep(start, began), _keep(look, told)
    return None


def _keep(look: StepLook, tensors: tuple[TensorLook, ...]) -> StepLook:
    return replace(look, tensors=tensors, differing=len(tensors))


def _name_module(name: str) -> str:
    return name.rpartition(".")[0]
