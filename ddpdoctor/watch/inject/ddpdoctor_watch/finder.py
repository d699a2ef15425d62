"""The import hook: patches a few modules right after they were executed, and is not to be seen afterwards."""

from __future__ import annotations

import sys

from .core import journal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

TARGETS = {
    "threading": "patch_threading",
    "multiprocessing.process": "patch_process",
    "multiprocessing.util": "patch_util",
    "traceback": "patch_traceback",
    "torch.multiprocessing.spawn": "patch_spawn",
    "torch.utils.data._utils.signal_handling": "patch_worker_signals",
    "torch.distributed.c10d_logger": "patch_logger",
    "torch.distributed.distributed_c10d": "patch_c10d",
    "torch.nn.modules.module": "patch_module",
    "torch.nn.parallel.distributed": "patch_ddp",
    "torch.nn.parallel.data_parallel": "patch_data_parallel",
    "torch.utils.data.dataloader": "patch_dataloader",
    "torch.serialization": "patch_serialization",
    "torch.random": "patch_random",
    "torch.nn.utils.clip_grad": "patch_clipping",
    "torch.optim.optimizer": "patch_optimizer",
    "torch.optim.lr_scheduler": "patch_lr_scheduler",
    "safetensors.torch": "patch_safetensors",
    "torch.distributed.checkpoint.default_planner": "patch_planner",
    "torch.distributed.pipelining.stage": "patch_stage",
    "torch.distributed.pipelining.schedules": "patch_schedules",
    "torch.distributed.fsdp._fully_shard._fsdp_param_group": "patch_parameters",
    "torch.distributed._composable.fsdp._fsdp_param_group": "patch_parameters",  # torch up to 2.5
    "torch.autograd.anomaly_mode": "patch_anomaly",
    "torch.distributed.elastic.agent.server.api": "patch_agent",
    "ray._private.worker": "patch_ray",
    "torch.distributed.elastic.agent.server.local_elastic_agent": "patch_local_agent",
}
"""Module, and the function of `patches` or `torchpatches` that patches it."""


class _Finder:
    """Lets the other finders find, and sees to it that the loader calls us when the module has been executed."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in TARGETS:
            return None
        finders = list(sys.meta_path)
        # Those before us have been asked.
        for finder in finders[finders.index(_Finder) + 1 :] if _Finder in finders else finders:
            find = getattr(finder, "find_spec", None)
            if find is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                try:
                    _arm(spec, name)
                except Exception as error:
                    journal.failed("finder", error)
                return spec
        return None


class _Proxy:
    """Stands before a loader that takes no attributes, or that others share."""

    def __init__(self, loader: Any, spec: ModuleSpec, name: str) -> None:
        self._loader = loader
        self._spec = spec
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._loader, attribute)

    def exec_module(self, module: ModuleType) -> None:
        self._spec.loader = self._loader
        for holder, attribute in ((module, "__loader__"), (getattr(module, "__spec__", None), "loader")):
            if getattr(holder, attribute, None) is self:
                setattr(holder, attribute, self._loader)
        self._loader.exec_module(module)
        _patch(self._name, module)


def install() -> None:
    """Put the finder before the others, and patch what is imported already."""
    sys.meta_path.insert(0, _Finder)
    for name in TARGETS:
        module = sys.modules.get(name)
        if module is not None:
            _patch(name, module)


def _arm(spec: ModuleSpec, name: str) -> None:
    loader: Any = spec.loader
    if not hasattr(loader, "exec_module"):
        return
    fresh = getattr(loader, "__dict__", None)
    if isinstance(loader, type) or fresh is None or type(loader).__name__ == "zipimporter":
        proxy: Any = _Proxy(loader, spec, name)
        spec.loader = proxy
        return

    def exec_module(module: ModuleType) -> None:
        fresh.pop("exec_module", None)
        loader.exec_module(module)
        _patch(name, module)

    # On the instance, which was made for this import: nobody sees another type of loader.
    fresh["exec_module"] = exec_module


def _patch(name: str, module: ModuleType) -> None:
    try:
        if name.startswith(("torch", "safetensors")):
            from . import torchpatches

            getattr(torchpatches, TARGETS[name])(module)
        else:
            from .interpreter import patches

            getattr(patches, TARGETS[name])(module)
    except Exception as error:
        journal.failed(name, error)
