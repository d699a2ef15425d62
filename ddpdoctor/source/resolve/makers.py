"""Which calls make a model, a loader, a sampler or an optimizer: torch's own and classes of the files."""

from __future__ import annotations

import ast
import re

from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.objects import FSDP1
from ddpdoctor.source.resolve.walking import find_keyword, is_spelled_out

LOADERS = frozenset({
    "torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader",
    "torchdata.stateful_dataloader.StatefulDataLoader", "monai.data.DataLoader", "monai.data.ThreadDataLoader",
    "torch_geometric.loader.DataLoader", "torch_geometric.data.DataLoader",
})  # fmt: skip
"""DataLoader, and its subclasses that leave the sampler to the program."""
OF_GRAPHS = frozenset({"dgl.dataloading.GraphDataLoader", "dgl.dataloading.dataloader.GraphDataLoader"})
"""Loaders that share their samples out themselves where they are given ``use_ddp`` (docs.dgl.ai, GraphDataLoader)."""
EXACT = {
    "torch.distributed.optim.ZeroRedundancyOptimizer": "optimizer",
    **dict.fromkeys(LOADERS, "loader"),
    "torch.utils.data.random_split": "split",
    "torch.utils.data.dataset.random_split": "split",
    "torch.utils.data.TensorDataset": "dataset",
    "torch.utils.data.Subset": "dataset",
    "torch.utils.data.ConcatDataset": "dataset",
    "datasets.load_dataset": "dataset",
    "torch.cuda.amp.GradScaler": "scaler",
    "torch.amp.GradScaler": "scaler",
    "torch.cuda.amp.grad_scaler.GradScaler": "scaler",
    "accelerate.Accelerator": "accelerator",
    "lightning.Fabric": "accelerator",
    "lightning.fabric.Fabric": "accelerator",
    "lightning_fabric.Fabric": "accelerator",
    "torch.hub.load": "model",
    "timm.create_model": "model",
    "timm.models.create_model": "model",
    "timm.models.factory.create_model": "model",
    "torch.nn.DataParallel": "data parallel",
    "torch.nn.parallel.DataParallel": "data parallel",
    **dict.fromkeys(FSDP1, "sharded"),
    "torch.nn.Parameter": "parameter",
    "torch.nn.parameter.Parameter": "parameter",
}
"""Kind of what a function or class makes, by its dotted name."""
SAMPLERS = ("torch.utils.data.", "torch.utils.data.distributed.", "torch.utils.data.sampler.")
BASES = {
    "torch.nn.Module": "model",
    "torch.nn.modules.Module": "model",
    "torch.nn.modules.module.Module": "model",
    "torch.nn.Sequential": "model",
    "transformers.PreTrainedModel": "model",
    "transformers.modeling_utils.PreTrainedModel": "model",
    "diffusers.ModelMixin": "model",
    "diffusers.models.modeling_utils.ModelMixin": "model",
    "torch.utils.data.Dataset": "dataset",
    "torch.utils.data.dataset.Dataset": "dataset",
    "torch.utils.data.IterableDataset": "iterable",
    "torch.utils.data.dataset.IterableDataset": "iterable",
    "torch.optim.Optimizer": "optimizer",
    "torch.optim.optimizer.Optimizer": "optimizer",
}
"""Kind of a class of the files, by a base."""
LOADS = frozenset({"from_pretrained", "from_config"})
"""Class methods of models of transformers and diffusers that make one."""
OF_MODELS = re.compile(r"Model|For[A-Z]|^UNet|^Autoencoder")
"""Names of such models; configurations, tokenizers and schedulers have the same methods."""
NOT_LAYERS = ("torch.nn.functional.", "torch.nn.utils.", "torch.nn.parallel.", "torch.nn.init.")
DEEPEST = 8


def find_kind(call: ast.Call, scope: Scope, files: Files) -> str | None:
    """Return the kind of what a call makes, where what it calls tells; None otherwise."""
    if _is_table_of_models(call.func, scope, files):
        return "model"
    name = files.dotted(call.func, scope)
    if name is None:
        return None
    if name in OF_GRAPHS:
        return "loader" if is_spelled_out(call) and find_keyword(call, "use_ddp") is None else None
    own = files.find_class(call.func, scope)
    if own is None and isinstance(call.func, ast.Attribute) and call.func.attr in LOADS:
        own = files.find_class(call.func.value, scope)
    return find_class_kind(own, files) if own is not None else find_kind_by_name(name)


def find_class_kind(own: Scope, files: Files, depth: int = 0) -> str | None:
    """Return the kind of the objects of a class of the files, by its bases."""
    if not isinstance(own.node, ast.ClassDef) or depth > DEEPEST:
        return None
    home = own.outer or own
    kinds = []
    for base in own.node.bases:
        above = files.find_class(base, home)
        name = files.dotted(base, home) or ""
        if above is not None and above is not own:
            kinds.append(find_class_kind(above, files, depth + 1))
        else:
            kinds.append(BASES.get(name) or find_kind_by_name(name))
    return next((kind for kind in kinds if kind is not None), None)


def find_kind_by_name(name: str) -> str | None:
    """Return the kind of what a function or class of a library makes, by its dotted name."""
    if name in EXACT:
        return EXACT[name]
    home, _, last = name.rpartition(".")
    if last.endswith("Sampler") and any(f"{home}." == each for each in SAMPLERS):
        return "sampler"
    if name.startswith("torch.optim.") and last[:1].isupper():
        return "scheduler" if "lr_scheduler" in name else "optimizer"
    if name.startswith("torch.nn.") and last[:1].isupper() and not name.startswith(NOT_LAYERS):
        return "loss" if last.endswith("Loss") else "model"
    if name.startswith("torchvision.models."):
        return "model"
    if name.startswith("torchvision.datasets."):
        return "dataset"
    if name.startswith(("transformers.", "diffusers.")) and last in LOADS:
        owner = home.rpartition(".")[2]
        return "model" if OF_MODELS.search(owner) else None
    return None


def _is_table_of_models(func: ast.expr, scope: Scope, files: Files) -> bool:
    """Whether it is ``models.__dict__[name]`` of torchvision or of a file with models, or ``MODELS[name]`` of one."""
    if not isinstance(func, ast.Subscript):
        return False
    table = func.value
    if isinstance(table, ast.Attribute) and table.attr == "__dict__":
        if files.dotted(table.value, scope) == "torchvision.models":
            return True
        home = files.find_module(table.value, scope)
        return home is not None and any(
            find_class_kind(each, files) == "model" for each in home.classes.values()
        )
    found = files.find_bound(table, scope)
    only = found[1][0] if found is not None and len(found[1]) == 1 else None
    return (
        found is not None
        and isinstance(only, ast.Dict)
        and bool(only.values)
        and all(_makes_model(each, found[0], files) for each in only.values)
    )


def _makes_model(node: ast.expr, scope: Scope, files: Files) -> bool:
    """Whether a name is that of a class of models of the files, or of a function that returns one."""
    own = files.find_class(node, scope)
    if own is not None:
        return find_class_kind(own, files) == "model"
    function = files.function(node, scope)
    made = (
        (each.value for each in ast.walk(function.node) if isinstance(each, ast.Return)) if function else ()
    )
    return any(
        isinstance(each, ast.Call) and find_kind(each, function, files) == "model"
        for each in made
        if function is not None
    )
