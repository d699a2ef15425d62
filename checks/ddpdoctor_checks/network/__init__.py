"""Checks of the family NET: names, ports, paths between nodes, and the rendezvous."""

from ddpdoctor_checks.network.interfaces import find_interface_missing, find_loopback_advertised
from ddpdoctor_checks.network.joining import find_ranks_missing
from ddpdoctor_checks.network.links import find_large_packets_lost, find_peer_unreachable, find_ports_blocked
from ddpdoctor_checks.network.names import (
    find_host_unmatched,
    find_master_unresolvable,
    find_peer_unresolvable,
)
from ddpdoctor_checks.network.ports import find_file_stale, find_port_invalid, find_port_taken

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
