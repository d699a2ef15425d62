"""What a manifest of Kubernetes or a configuration of Accelerate starts."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ddpdoctor.source.launching.shell import Command, Setting, read_shell
from ddpdoctor.source.launching.starters import Starter, find_starters

GPUS = ("nvidia.com/gpu", "amd.com/gpu")
MISSING = "PyYAML is not installed, which reads such files"
CONFIGURED = {
    "num_processes": "num-processes",
    "num_machines": "num-machines",
    "main_process_ip": "main-process-ip",
    "main_process_port": "main-process-port",
    "machine_rank": "machine-rank",
    "gpu_ids": "gpu-ids",
    "distributed_type": "distributed-type",
    "rdzv_backend": "rdzv-backend",
}
"""Keys of Accelerate's configuration and the options of ``accelerate launch`` that mean the same."""


@dataclass(slots=True)
class Pod:
    """A container that starts ranks."""

    line: int
    starters: list[Starter] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    gpus: tuple[int, int] | None = None
    """What it may use, and the line that says so."""
    replicas: int | None = None
    """Pods of the job, over all roles; None where that is not known."""
    managed: bool = False
    """Whether it is one of Kubernetes, whose operators set variables of their own."""


def read_manifest(text: str) -> list[Pod] | str:
    """Return what documents of YAML start, or why they cannot be read.

    Args:
        text: of the file.
    """
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError:
        return MISSING
    try:
        documents = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError, ValueError) as problem:
        mark = getattr(problem, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark is not None else ""
        return f"{line}{getattr(problem, 'problem', None) or type(problem).__name__}"
    found: list[Pod] = []
    for document in documents:
        keys = _read_map(document)
        if "compute_environment" in keys or ("distributed_type" in keys and "num_processes" in keys):
            found.append(_read_configuration(keys))
        else:
            replicas = _count_replicas(keys)
            found += [_read_container(each, replicas) for each in _find_containers(document)]
    return [pod for pod in found if pod.starters]


def _read_map(node: Any) -> dict[str, Any]:
    """Return the nodes of a mapping by their keys; nothing of another node."""
    value = getattr(node, "value", None)
    if getattr(node, "id", "") != "mapping" or not isinstance(value, list):
        return {}
    return {str(key.value): each for key, each in value if key.id == "scalar"}


def _text(node: Any) -> str:
    return str(node.value) if getattr(node, "id", "") == "scalar" else ""


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


def _read_configuration(keys: dict[str, Any]) -> Pod:
    lines = [_line(each) for each in keys.values()]
    options = {
        option: text
        for key, option in CONFIGURED.items()
        if key in keys and (text := _text(keys[key])) not in ("", "null", "~")
    }
    command = Command(("accelerate", "launch"), min(lines), max(lines))
    ids = options.get("gpu-ids", "all").replace(" ", "")
    gpus = None
    if ids != "all" and all(part.isdigit() for part in ids.split(",")):
        gpus = (ids.count(",") + 1, _line(keys["gpu_ids"]))
    if "mpirun_config" in keys:
        options["mpirun-hostfile"] = ""
    # a configuration may be completed by options of the command that uses it
    starter = Starter("accelerate", options, "", (), "num_processes" in keys, command, "configuration")
    return Pod(min(lines), [starter], gpus=gpus)


def _find_containers(node: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the mappings below keys named ``containers``."""
    if depth > 24:
        return
    for key, each in _read_map(node).items():
        if key == "containers" and each.id == "sequence":
            yield from each.value
        else:
            yield from _find_containers(each, depth + 1)
    if getattr(node, "id", "") == "sequence":
        for each in node.value:
            yield from _find_containers(each, depth + 1)


def _count_replicas(keys: dict[str, Any]) -> int | None:
    """Return how many pods a PyTorchJob has over all roles; None of other kinds."""
    if _text(keys.get("kind")) != "PyTorchJob":
        return None
    roles = _read_map(_read_map(keys.get("spec")).get("pytorchReplicaSpecs"))
    counts = [_text(_read_map(each).get("replicas")) or "1" for each in roles.values()]
    return sum(map(int, counts)) if counts and all(each.isdigit() for each in counts) else None


def _read_container(node: Any, replicas: int | None) -> Pod:
    keys = _read_map(node)
    pod = Pod(_line(node), replicas=replicas, managed=True)
    resources = _read_map(keys.get("resources"))
    for part in ("limits", "requests"):
        for name, value in _read_map(resources.get(part)).items():
            if name in GPUS and _text(value).isdigit() and pod.gpus is None:
                pod.gpus = int(_text(value)), _line(value)
    for each in keys["env"].value if getattr(keys.get("env"), "id", "") == "sequence" else ():
        pair = _read_map(each)
        if "name" in pair and "value" in pair:
            pod.settings.append(
                Setting(_text(pair["name"]), _text(pair["value"]), _line(pair["value"]), False)
            )
    parts = [each for key in ("command", "args") for each in _list_words(keys.get(key))]
    if not parts:
        return pod
    first, last = _line(parts[0]), max(int(each.end_mark.line) + 1 for each in parts)
    words = tuple(_text(each) for each in parts)
    pod.starters = list(find_starters([Command(words, first, last)] if words[0] else []))
    for each in parts:
        text = _text(each)
        if "\n" in text:
            offset = int(each.start_mark.line) + (2 if each.style in ("|", ">") else 1)
            inner = read_shell(text.split("\n"))
            pod.settings += [
                Setting(one.name, one.value, one.line + offset - 1, one.conditional) for one in inner.settings
            ]
    return pod


def _list_words(node: Any) -> list[Any]:
    if getattr(node, "id", "") == "sequence":
        return [each for each in node.value if each.id == "scalar"]
    return [node] if getattr(node, "id", "") == "scalar" else []
