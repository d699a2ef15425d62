"""Whether the ranks of a program draw the same random numbers: what seeds the generators that everybody draws from."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence

from ddpdoctor.source.resolve.kinds import Kinds
from ddpdoctor.source.resolve.names import UNKNOWN, Scope
from ddpdoctor.source.resolve.rank_tests import RankReader
from ddpdoctor.source.resolve.walking import find_argument, find_keyword, own_nodes

GLOBAL = {
    "random.seed": "random",
    "numpy.random.seed": "numpy",
    "torch.manual_seed": "torch",
    "torch.random.manual_seed": "torch",
    "torch.default_generator.manual_seed": "torch",
    "torch.cuda.manual_seed": "torch",
    "torch.cuda.manual_seed_all": "torch",
}
"""Functions that seed what all draw from, and the library whose draws these are."""
SEEDS = (
    "seed",
    "determin",
    "reproduc",
    "random_state",
    "randomness",
    "set_state",
    "setstate",
    "set_rng",
    "fork_rng",
)
"""Parts of names of functions that seed."""
READS = ("initial_seed", "default_rng")
"""Functions of such a name that leave what all draw from as it is."""
ELSEWHERE = ("setup", "init", "config", "prepare", "environment", "bootstrap")
"""Parts of names of functions that may seed, where they were not given."""
FORKS = ("process", "fork")
"""Functions after which ranks may have the state of one parent."""
KNOWN = frozenset(sys.stdlib_module_names) | frozenset(
    """
    torch torchvision torchaudio torchtext torchmetrics numpy scipy pandas sklearn skimage PIL cv2
    matplotlib seaborn plotly tqdm yaml toml h5py lmdb pyarrow zarr einops timm
    datasets tokenizers sentencepiece tiktoken safetensors huggingface_hub accelerate apex
    xformers flash_attn bitsandbytes peft
    triton onnx wandb mlflow tensorboard tensorboardX visdom rich loguru termcolor tabulate psutil
    pynvml requests fsspec s3fs boto3 webdataset omegaconf hydra click typer fire absl
    yacs ml_collections pydantic attr attrs dotenv joblib numba sympy networkx faiss regex
    ftfy nltk librosa soundfile av decord imageio nibabel albumentations kornia pycocotools fvcore
    iopath packaging setuptools six more_itertools
    """.split()
)
"""Modules that seed nothing when they are imported; their functions that do have one of `SEEDS` in their names."""
DEEPEST = 3
"""Variables that are followed to what a generator is seeded with."""


def find_seeding(module: Scope, kinds: Kinds, library: str) -> str | None:
    """Return why random numbers differ over ranks; None where they may be the same.

    Args:
        module: of a program.
        kinds: what values are.
        library: which generator is drawn from: ``random``, ``numpy`` or ``torch``.

    Returns:
        ``seeded``, by the rank; ``unseeded``; or None, also where something may seed that was not read.
    """
    members = kinds.programs.members(module)
    if any(not _knows_imports(member, kinds) or _hands_seeds_on(member, kinds) for member in members):
        return None
    ranks = RankReader(kinds.files)
    workers = set(_find_worker_starters(module, kinds))
    by_rank = False
    for call, scope, name in kinds.programs.calls(module):
        if workers.intersection(scope.outwards()):
            continue  # in processes of their own
        last = (name or ast.unparse(call.func)).rpartition(".")[2].lower()
        if last in FORKS:
            return None
        if name in GLOBAL:
            if GLOBAL[name] != library:
                continue
            if not (call.args and is_by_rank(call.args[0], scope, ranks)):
                return None
            by_rank = by_rank or ".cuda." not in name
        elif _may_seed(call, scope, last, kinds):
            return None
    return "seeded" if by_rank else "unseeded"


def is_seeded_alike(module: Scope, kinds: Kinds, library: str) -> bool:
    """Whether all that a program draws from starts alike on all ranks: it is seeded, and never by the rank.

    Args:
        module: of a program.
        kinds: what values are.
        library: as for `find_seeding`.
    """
    ranks = RankReader(kinds.files)
    workers = set(_find_worker_starters(module, kinds))
    seeds: list[ast.expr] = []
    for call, scope, name in kinds.programs.calls(module):
        if workers.intersection(scope.outwards()):
            continue
        last = (name or ast.unparse(call.func)).rpartition(".")[2].lower()
        if name in GLOBAL:
            if GLOBAL[name] == library:
                if not call.args or is_by_rank(call.args[0], scope, ranks):
                    return False
                if any(isinstance(each, ast.Call) for each in ast.walk(call.args[0])):
                    return False  # the time, the number of the process
                seeds.append(call.args[0])
        elif _may_seed(call, scope, last, kinds):
            return False
    return bool(seeds)


def _knows_imports(module: Scope, kinds: Kinds) -> bool:
    """Whether all that a module imports was read, or is known to seed nothing by itself."""
    for scope in module.walk():
        for name in scope.imports.values():
            if name.split(".")[0] not in KNOWN and not kinds.files.was_read(name, scope):
                return False
    return True


def _hands_seeds_on(module: Scope, kinds: Kinds) -> bool:
    """Whether a function that seeds is used as a value: whoever is given it may call it."""
    for scope in module.walk():
        called = {id(node.func) for node in own_nodes(scope.node) if isinstance(node, ast.Call)}
        named = (node for node in own_nodes(scope.node) if isinstance(node, (ast.Name, ast.Attribute)))
        if any((kinds.files.dotted(node, scope) or "") in GLOBAL for node in named if id(node) not in called):
            return True
    return False


def _find_worker_starters(module: Scope, kinds: Kinds) -> Iterator[Scope]:
    """Yield the functions that loaders of a program run in their workers."""
    for call, scope, _ in kinds.programs.calls(module):
        starter = find_keyword(call, "worker_init_fn")
        function = kinds.files.function(starter, scope) if starter is not None else None
        if function is not None:
            yield function


def _may_seed(call: ast.Call, scope: Scope, last: str, kinds: Kinds) -> bool:
    """Whether a function that is none of torch's own, numpy's or Python's may seed what all draw from."""
    if (
        kinds.files.function(call.func, scope) is not None
        or kinds.files.find_class(call.func, scope) is not None
    ):
        return False  # its own calls are read
    if any(word in last for word in SEEDS):
        return last not in READS and not (
            last in ("manual_seed", "seed") and isinstance(call.func, ast.Attribute)
        )
    return (
        any(word in last for word in ELSEWHERE)
        and isinstance(call.func, ast.Name)
        and not any(call.func.id in each.imports for each in scope.outwards())
        and call.func.id != "super"
    )


def is_by_rank(node: ast.expr, scope: Scope, ranks: RankReader, depth: int = 0) -> bool:
    """Whether a number is another one on each rank: the rank itself, or the rank and something added or multiplied.

    Not the number of a node, which several ranks have, nor what becomes of a rank by a division.
    """
    if isinstance(node, ast.BinOp):
        if not isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
            return False
        sides = (is_by_rank(each, scope, ranks, depth) for each in (node.left, node.right))
        return any(sides)
    text = ast.unparse(node).lower()
    if "node" in text or "group" in text:
        return False
    if (
        isinstance(node, ast.Call)
        and len(node.args) == 1
        and isinstance(node.func, ast.Name)
        and node.func.id == "int"
    ):
        return is_by_rank(node.args[0], scope, ranks, depth)
    bound = scope.lookup(node.id) if isinstance(node, ast.Name) else None
    if isinstance(node, ast.Name) and bound is not None and bound[1] == [UNKNOWN] and depth < DEEPEST:
        given = [
            (find_argument(call, bound[0], node.id), home)
            for call, home in ranks.files.objects.callers(bound[0])
        ]
        if given and all(
            each is not None and is_by_rank(each, home, ranks, depth + 1) for each, home in given
        ):
            return True
    if isinstance(node, ast.Name) and bound is not None and depth < DEEPEST:
        body = getattr(bound[0].node, "body", [])
        if any(is_by_rank(each, bound[0], ranks, depth + 1) for each in _list_added(node.id, body)):
            return True
    values = [(each, bound[0]) for each in bound[1]] if bound else []
    if len(values) == 1 and isinstance(values[0][0], (ast.BinOp, ast.Call)) and depth < DEEPEST:
        return is_by_rank(*values[0], ranks, depth + 1)
    return ranks.rank(node, scope) is not None


def _list_added(name: str, body: Sequence[ast.stmt]) -> Iterator[ast.expr]:
    """Yield what each run of a function adds to a number: ``seed += rank``."""
    for each in body:
        if not isinstance(each, ast.AugAssign) or not isinstance(each.op, (ast.Add, ast.Sub)):
            continue
        if getattr(each.target, "id", None) == name:
            yield each.value
