"""The devices of ranks: which one each uses, and what is known of it."""

from __future__ import annotations

from ddpdoctor.evidence import Device, Evidence, NodeFacts, RankFacts

GPU_BACKENDS = ("nccl", "xccl")
"""Backends whose tensors live on an accelerator."""


def on_gpu(facts: RankFacts) -> bool:
    """Whether a rank uses an accelerator."""
    return facts.device.split(":")[0] not in ("cpu", "meta")


def explain_no_gpu(evidence: Evidence) -> str:
    """Return why a question about the ranks' GPUs does not apply."""
    return "no rank uses a GPU" if any(node.devices for node in evidence.nodes) else "no GPU"


def find_device(node: NodeFacts | None, facts: RankFacts) -> Device | None:
    """Return what is known of a rank's device: by UUID, else by index where nothing renumbers the devices."""
    if node is None:
        return None
    if facts.device_uuid is not None:
        return next((each for each in node.devices if each.uuid == facts.device_uuid), None)
    if any(name in facts.variables for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")):
        return None
    index = facts.device.partition(":")[2] or "0"
    return next((each for each in node.devices if str(each.index) == index), None)
