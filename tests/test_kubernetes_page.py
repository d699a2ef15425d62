"""The manifests of docs/kubernetes.md are valid, and their commands start a job with the variables that pods have."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.marks import mostly_long

kubernetes_validate: Any = pytest.importorskip(
    "kubernetes_validate", reason="kubernetes-validate is not installed"
)
trainer: Any = pytest.importorskip(
    "kubeflow_trainer_api.models", reason="kubeflow-trainer-api is not installed"
)

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "kubernetes.md").read_text()
MANIFESTS: dict[str, dict[str, Any]] = {
    each["kind"] if each["apiVersion"] != "batch.volcano.sh/v1alpha1" else "Volcano": each
    for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    for each in yaml.safe_load_all(block)
}
VERSION = "1.34"
MODELS: dict[str, Any] = {"JobSet": trainer.JobsetV1alpha2JobSet, "TrainJob": trainer.TrainerV1alpha1TrainJob}
TRAIN = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(f"ranks {int(total)}\\n", end="", flush=True)
dist.destroy_process_group()
"""


def list_templates(node: Any) -> list[dict[str, Any]]:
    """Return the specs of all pods that a manifest makes."""
    if isinstance(node, list):
        return [found for each in node for found in list_templates(each)]
    if not isinstance(node, dict):
        return []
    if "containers" in node:
        return [node]
    return [found for each in node.values() for found in list_templates(each)]


def find_container(kind: str) -> dict[str, Any]:
    manifest = MANIFESTS[kind]
    if kind == "TrainJob":
        container: dict[str, Any] = manifest["spec"]["trainer"]
        return container
    first: dict[str, Any] = list_templates(manifest)[0]["containers"][0]
    return first


def test_all_kinds_are_there() -> None:
    assert set(MANIFESTS) == {"Service", "Job", "JobSet", "TrainJob", "PyTorchJob", "Volcano"}


@pytest.mark.parametrize("kind", ["Service", "Job"])
def test_core_objects_are_valid(kind: str) -> None:
    kubernetes_validate.validate(MANIFESTS[kind], VERSION, strict=True)


@pytest.mark.parametrize("kind", ["Job", "JobSet", "PyTorchJob", "Volcano"])
def test_pod_templates_are_valid(kind: str) -> None:
    specs = list_templates(MANIFESTS[kind])
    assert specs
    for spec in specs:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
        kubernetes_validate.validate(pod, VERSION, strict=True)
        for container in spec["containers"]:
            assert container["resources"]["limits"]["nvidia.com/gpu"] == 8


def test_a_field_that_is_not_there_is_an_error() -> None:
    wrong = {**MANIFESTS["Service"], "spec": {**MANIFESTS["Service"]["spec"], "publishNotReady": True}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


@pytest.mark.parametrize("kind", MODELS)
def test_custom_resources_have_the_fields_of_their_models(kind: str) -> None:
    manifest = MANIFESTS[kind]
    model = MODELS[kind].from_dict(manifest)
    kept = model.model_dump(by_alias=True, exclude_none=True, mode="json")
    assert _lost(manifest, kept) == []


def _lost(given: Any, kept: Any, place: str = "") -> list[str]:
    """Return the fields that a model has no place for."""
    if isinstance(given, dict):
        if not isinstance(kept, dict):
            return [place]
        return [
            found
            for name, value in given.items()
            for found in (
                _lost(value, kept[name], f"{place}.{name}") if name in kept else [f"{place}.{name}"]
            )
        ]
    if isinstance(given, list) and isinstance(kept, list):
        return [
            found for one, two in zip(given, kept, strict=True) for found in _lost(one, two, f"{place}[]")
        ]
    return []


def read_variables(kind: str, port: int) -> dict[str, str]:
    """Return what the controller sets in the only pod of a job of one node."""
    if kind in ("Job", "JobSet"):
        return {"JOB_COMPLETION_INDEX": "0"}
    pods = {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if kind == "Volcano":
        return pods
    launcher = {
        "PET_NNODES": "1",
        "PET_NPROC_PER_NODE": "2",
        "PET_NODE_RANK": "0",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(port),
    }
    return launcher if kind == "TrainJob" else {**launcher, **pods}


@pytest.mark.parametrize(
    "kind", mostly_long(["Job", "JobSet", "TrainJob", "PyTorchJob", "Volcano"], "PyTorchJob")
)
def test_the_command_of_a_pod_starts_the_job(kind: str, tmp_path: Path) -> None:
    container = find_container(kind)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = read_variables(kind, port)
    words = [re.sub(r"\$\((\w+)\)", lambda m: variables[m[1]], word) for word in container.get("args", [])]
    for old, new in (
        ("--nnodes=4", "--nnodes=1"),
        ("--nproc-per-node=8", "--nproc-per-node=2"),
        ("=train-0.train", "=127.0.0.1"),
        ("=train-node-0-0.train", "=127.0.0.1"),
        ("=29500", f"={port}"),
    ):
        words = [word.replace(old, new) for word in words]
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "ddpdoctor").write_text(f'#!/bin/sh\nexec {sys.executable} -m ddpdoctor "$@"\n')
    (tmp_path / "ddpdoctor").chmod(0o755)
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("COV_CORE", "COVERAGE"))
    }
    environ |= {**variables, "PATH": f"{tmp_path}:{environ['PATH']}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*container["command"], *words],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines().count("ranks 2") == 2
    assert "ddpdoctor ✓" in done.stderr
