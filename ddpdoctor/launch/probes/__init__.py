"""Probes: what each rank of the test job runs. They emit evidence and draw no conclusion.

Importing this package imports torch; the forkserver preloads it. The default process group exists before any
of them runs, and only `probe_initialisation`, which comes last, ends it.
"""

from __future__ import annotations

from collections.abc import Callable

from ddpdoctor.launch.context import RankContext
from ddpdoctor.launch.probes.backends import probe_backends
from ddpdoctor.launch.probes.bandwidth.pairs import probe_pairs
from ddpdoctor.launch.probes.bandwidth.sweep import probe_bandwidth
from ddpdoctor.launch.probes.base import ProbeError
from ddpdoctor.launch.probes.collectives import probe_collectives
from ddpdoctor.launch.probes.ddp import probe_ddp
from ddpdoctor.launch.probes.initialisation import probe_initialisation
from ddpdoctor.launch.probes.model.probe import probe_model
from ddpdoctor.launch.probes.strategies import probe_strategies

PROBES: dict[str, list[Callable[[RankContext], None]]] = {
    "backends": [probe_backends],
    "collectives": [probe_collectives],
    "ddp": [probe_ddp, probe_model],
    "bandwidth": [probe_bandwidth, probe_pairs],
    "strategies": [probe_strategies],
}
"""Stage -> its probes, in the order in which they run."""

__all__ = ["PROBES", "ProbeError", "probe_initialisation"]
