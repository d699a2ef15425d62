"""From parsed options to a `CheckRequest`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

from ddpdoctor.api.requests import choose_stages, require_valid
from ddpdoctor.evidence.stages import STRATEGIES
from ddpdoctor.launch.request import CheckRequest


def read_request(options: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> CheckRequest:
    """Return the validated request.

    Args:
        options: parsed options of ``check``; what was not given is absent.
        environ: where launcher variables are looked for.

    Raises:
        UsageError: the options contradict each other, or one has an impossible value.
    """
    given_words = [getattr(options, name, ()) for name in ("only", "skip", "strategy")]
    stages = choose_stages(*given_words)
    given = _set_aside(vars(options), stages)
    request = CheckRequest(
        **{key: given[key] for key in _PLAIN if key in given},
        stages=stages,
        collectives=tuple(dict.fromkeys(given.get("collectives", ()))),
        strategies=tuple(each for each in STRATEGIES if each in given.get("strategy", ())),
        iterations=given.get("iters"),
        limits=dict(given.get("stage_timeout", ())),
    )
    require_valid(request, environ)
    return request


def _set_aside(given: Mapping[str, Any], stages: tuple[str, ...]) -> dict[str, Any]:
    """Return the options without configured ones of stages that the command line has left out.

    On the command line, or all in one file, such options contradict each other, and `require_valid` says so.
    """
    kept, configured = dict(given), given.get("configured", frozenset())
    if not {"only", "skip"} & given.keys() - configured:
        return kept
    for stage, names in _OPTIONS.items():
        for name in configured.intersection(names) if stage not in stages else ():
            del kept[name]
    if "stage_timeout" in configured:
        kept["stage_timeout"] = [(stage, limit) for stage, limit in given["stage_timeout"] if stage in stages]
    return kept


_OPTIONS = {
    "bandwidth": ("full", "collectives", "sizes", "iters"),
    "ddp": ("model",),
    "strategies": ("strategy",),
}
"""Stage -> options that only it uses."""
_PLAIN = (
    "nproc",
    "nnodes",
    "node_rank",
    "master_addr",
    "master_port",
    "rdzv_backend",
    "rdzv_endpoint",
    "rdzv_id",
    "local_addr",
    "backend",
    "model",
    "full",
    "sizes",
    "join_timeout",
    "timeout",
    "run_dir",
)
