"""What is known of other people's packages: functions that make no collective."""

from __future__ import annotations

import builtins
import sys

KNOWN_ROOTS = frozenset({*sys.stdlib_module_names, *dir(builtins), "torch", "numpy", "np", "tqdm", "wandb",
                         "accelerate", "torchvision", "transformers", "datasets", "yaml"})  # fmt: skip
"""Packages whose functions make no collective of the user's groups unless `name_collective` knows it."""
SIZES = frozenset({"world", "world_size", "get_world_size", "num_processes", "nprocs"})
"""Names of the number of ranks."""
HARMLESS = frozenset("""append extend update add get items keys values pop join split strip format write flush close
    info debug warning warn error exception critical log print add_scalar add_scalars add_text item cpu detach numpy
    tolist to mean sum size numel state_dict set_postfix set_description set_epoch mkdir exists
    makedirs read readlines zero_grad empty_cache zero_ copy_ fill_ eval train""".split())  # fmt: skip
"""Methods of whatever object that are no collectives."""
