"""Checks of the family NET: names, ports, paths between nodes, and the rendezvous."""

# In the order in which reports show the checks, and in which findings of equal weight are ordered: what can
# cause the others comes first.
from ddpdoctor_checks.network.ports import find_file_stale, find_port_invalid, find_port_taken

# isort: split
from ddpdoctor_checks.network.names import (
    find_host_unmatched,
    find_master_unresolvable,
    find_peer_unresolvable,
)

# isort: split
from ddpdoctor_checks.network.interfaces import find_interface_missing, find_loopback_advertised

# isort: split
from ddpdoctor_checks.network.links import find_large_packets_lost, find_peer_unreachable, find_ports_blocked

# isort: split
from ddpdoctor_checks.network.joining import find_ranks_missing

__all__ = [
    "find_file_stale",
    "find_host_unmatched",
    "find_interface_missing",
    "find_large_packets_lost",
    "find_loopback_advertised",
    "find_master_unresolvable",
    "find_peer_unreachable",
    "find_peer_unresolvable",
    "find_port_invalid",
    "find_port_taken",
    "find_ports_blocked",
    "find_ranks_missing",
]
