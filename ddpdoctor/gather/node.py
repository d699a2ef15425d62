"""All facts of one node, gathered before anything is launched on it."""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from ddpdoctor.evidence.facts import Library, NodeFacts
from ddpdoctor.gather import cgroups, machine
from ddpdoctor.gather.deadline import Later
from ddpdoctor.gather.devices.accelerators import gather_devices
from ddpdoctor.gather.leftovers import find_leftovers
from ddpdoctor.gather.libraries import gather_libraries
from ddpdoctor.gather.network.dns import describe_lookup_error, look_up
from ddpdoctor.gather.network.interfaces import find_advertised, holder_of, list_interfaces, route_to
from ddpdoctor.gather.rendezvous_files import find_rendezvous_files
from ddpdoctor.gather.tracing import explain_tracing
from ddpdoctor.gather.variables import allowed_variables
from ddpdoctor.gather.versions import gather_versions

T = TypeVar("T")
D = TypeVar("D")

NAME_LIMIT_S = 3.0
"""Seconds for each name look-up of this node. The whole stage has 10 s (`ddpdoctor.launch.plan.DEFAULT_LIMITS`)."""
TOOL_LIMIT_S = 8.0
"""Seconds for the vendor's tool: without persistence mode nvidia-smi initializes each GPU, 1-2 s for eight."""
SCAN_LIMIT_S = 5.0
"""Seconds for reading /proc and the file system; tens of milliseconds unless something is stuck."""


def gather_node(
    node: int,
    *,
    environ: Mapping[str, str],
    master_addr: str | None,
    multi_node: bool,
    model: str | None = None,
) -> NodeFacts:
    """Return what can be known of this node without a rendezvous; never raises.

    Everything that may wait (names, vendors' tools, the scan of processes) runs at once, each under its own
    limit. What could not be read is None, empty or told in a note.

    Args:
        node: group rank of this node.
        environ: the launching process's variables.
        master_addr: where the world will meet; None when it is not known yet.
        multi_node: whether other nodes take part; a single node does not ask for the names that only peers
            would use.
        model: the user's ``pkg.mod:factory``, whose file is hashed.
    """
    host = _try(socket.gethostname, "unknown")
    start = time.monotonic()
    names = Later(lambda: look_up(host, NAME_LIMIT_S))
    fqdn = Later(lambda: socket.getfqdn()) if multi_node else None
    route = Later(lambda: route_to(master_addr, NAME_LIMIT_S))
    devices = Later(lambda: gather_devices(TOOL_LIMIT_S))
    leftovers = Later(find_leftovers)
    libraries = Later(lambda: gather_libraries(environ))

    def left(limit_s: float) -> float:
        return max(0.05, limit_s - (time.monotonic() - start))

    limits = _try(cgroups.read_limits, cgroups.CgroupLimits())
    interfaces = _try(list_interfaces, ())
    read = NodeFacts(
        node=node,
        host=host,
        boot_id=_try(machine.boot_id, None),
        interfaces=interfaces,
        ephemeral_ports=_try(machine.ephemeral_ports, None),
        cpus=_try(lambda: machine.count_cpus(limits.cpus), None),
        memory_total=_try(machine.total_memory, None),
        memory_limit=limits.memory,
        shared_memory=_try(machine.shared_memory, None),
        limits=_try(machine.read_rlimits, None),
        rdma_devices=_try(machine.rdma_devices, ()),
        system=_try(machine.describe_system, None),
        container=_try(lambda: machine.find_container(environ), None),
        versions=_try(lambda: gather_versions(model=model), {}),
        variables=_try(lambda: allowed_variables(environ), {}),
        tracing=_try(explain_tracing, None),
        rendezvous_files=_try(lambda: find_rendezvous_files(environ), None),
    )
    addresses, name_error = _names_of(names, left(NAME_LIMIT_S))
    advertised = find_advertised(environ, interfaces, addresses)
    route_address = route.result_or(None, left(NAME_LIMIT_S))
    found_devices, devices_note = devices.result_or(
        ((), f"detecting devices took over {TOOL_LIMIT_S:g} s"), left(TOOL_LIMIT_S + 1)
    )
    found_leftovers, leftovers_note = leftovers.result_or(
        ((), "the scan of processes did not finish in time"), left(SCAN_LIMIT_S)
    )
    found_libraries, libraries_note = _libraries_of(libraries, left(SCAN_LIMIT_S))
    return dataclasses.replace(
        read,
        fqdn=fqdn.result_or(None, left(NAME_LIMIT_S)) if fqdn is not None else None,
        name_addresses=addresses,
        name_error=name_error,
        advertised=advertised.address,
        advertised_interface=advertised.interface,
        route_address=route_address,
        route_interface=holder_of(route_address, interfaces),
        devices=found_devices,
        devices_note=devices_note,
        libraries=found_libraries,
        libraries_note=libraries_note,
        leftovers=found_leftovers,
        leftovers_note=leftovers_note,
    )


def _try(function: Callable[[], T], default: D) -> T | D:
    """Call a reader of the machine; whatever is wrong with the machine, the other facts are still wanted."""
    try:
        return function()
    except Exception:
        return default


def _libraries_of(
    libraries: Later[tuple[Library, ...]], limit_s: float
) -> tuple[tuple[Library, ...], str | None]:
    """Return what was found; that nothing was found in time is not that nothing is there."""
    try:
        return libraries.result(limit_s), None
    except TimeoutError:
        return (), f"searching for libraries took over {SCAN_LIMIT_S:g} s"
    except Exception as problem:
        return (), f"searching for libraries failed: {problem}"


def _names_of(names: Later[tuple[str, ...]], limit_s: float) -> tuple[tuple[str, ...], str | None]:
    try:
        return names.result(limit_s), None
    except Exception as problem:
        return (), describe_lookup_error(problem, NAME_LIMIT_S)
