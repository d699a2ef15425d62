"""Trying the paths between the nodes, and what they say about a world over them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ddpdoctor.evidence import Link, Resolution, decode
from ddpdoctor.gather.network.dns import resolve
from ddpdoctor.gather.network.pairs import choose_pairs, dial, push_large
from ddpdoctor.launch.meeting.store import DIAL_LIMIT_S
from ddpdoctor.launch.plan import Plan

PARALLEL_DIALS = 8
"""Connections and look-ups under way at once."""
LEAST_DIAL_S = 2.0
"""Also where ``--timeout`` is near: Linux sends a second SYN after 1 s, so that one lost packet is no broken path."""
SURELY_LOST = 64 * 1024
"""A burst up to this size gets through in the 5 s of a push over anything faster than 0.1 Mbit/s; a larger one
may just be slow."""


def try_paths(
    plan: Plan, leaders: dict[int, dict[str, Any]], token: str, tell: Callable[[Link], None]
) -> list[Link]:
    """Dial every chosen node from here, and push growing bursts where that worked.

    Args:
        plan: of this node.
        leaders: node -> what its leading party said of itself: party, address, ports.
        token: secret of this run.
        tell: told of each path as soon as it has been tried; called from several threads.
    """
    limit_s = DIAL_LIMIT_S
    if plan.until is not None:
        limit_s = min(DIAL_LIMIT_S, max(LEAST_DIAL_S, plan.until - time.monotonic()))
    targets = [target for source, target in choose_pairs(len(leaders)) if source == plan.node]
    with ThreadPoolExecutor(max_workers=PARALLEL_DIALS) as pool:
        groups = list(
            pool.map(lambda target: _try_path(plan, target, leaders[target], token, tell, limit_s), targets)
        )
    return [link for group in groups for link in group]


def _try_path(
    plan: Plan, target: int, other: dict[str, Any], token: str, tell: Callable[[Link], None], limit_s: float
) -> list[Link]:
    source, address = plan.node, str(other["address"])
    links: list[Link] = []

    def keep(link: Link) -> None:
        links.append(link)
        tell(link)

    for kind, port in other["ports"].items():
        keep(dial(source, target, address, int(port), kind, token, limit_s))
    if int(other["party"]) == 0:  # there torch's own store listens, which knows no greeting of ours
        port = plan.launch.master_port or 0
        keep(dial(source, target, address, port, "rendezvous", None, limit_s))
    first = links[0] if links else None
    if first is not None and first.ok and first.port is not None:
        keep(push_large(source, target, address, first.port, token, limit_s=limit_s))
    return links


def resolve_peers(node: int, names: dict[int, str]) -> list[Resolution]:
    """Look up the names of other nodes, several at a time.

    Args:
        node: this node.
        names: other node -> the name that it publishes.
    """
    with ThreadPoolExecutor(max_workers=PARALLEL_DIALS) as pool:
        return list(pool.map(lambda other: resolve(node, names[other], "peer", of_node=other), sorted(names)))


def find_broken_path(links: Sequence[Link]) -> str | None:
    """Return what rules out a world, worded; else None.

    That is a pair of nodes of which neither can reach the other on an ephemeral port (gloo and NCCL connect
    every pair, but only one side dials: a path that works one way may do), or a path on which large packets
    vanish.
    """
    state: dict[tuple[int, int], bool] = {
        (link.source, link.target): link.ok for link in links if link.kind == "ephemeral"
    }
    for (source, target), ok in sorted(state.items()):
        if not ok and not state.get((target, source), False):
            return f"nodes {source} and {target} cannot reach each other on ephemeral ports"
    for link in links:
        if loses_large(link) and (link.bytes_failed or 0) <= SURELY_LOST:
            return (
                f"{link.bytes_failed} bytes at once do not get through from node {link.source} to node "
                f"{link.target}"
            )
    return None


def loses_large(link: Link) -> bool:
    """Whether small messages pass on this path and a larger one did not."""
    return link.kind == "large" and not link.ok and bool(link.bytes_passed)


def choose_launch(seen: list[dict[str, Any]]) -> dict[str, Any]:
    """Choose for all from what each saw: why not to launch, and whether large packets get lost."""
    links = [decode(Link, row) for each in seen for row in each["links"]]
    unresolved = next((each["unresolved"] for each in seen if each["unresolved"] is not None), None)
    return {
        "reason": find_broken_path(links) or unresolved,
        "gently": any(loses_large(link) for link in links),
    }
