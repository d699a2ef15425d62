"""Checks of the family PRF: is communication as fast as the hardware allows, and equally fast everywhere."""

from ddpdoctor_checks.bandwidth.level import find_bandwidth_low, find_contents_wrong
from ddpdoctor_checks.bandwidth.reported import find_node_slow
from ddpdoctor_checks.bandwidth.slow_links import find_link_slow

__all__ = ["find_bandwidth_low", "find_contents_wrong", "find_link_slow", "find_node_slow"]
