"""Bytes between pairs of ranks and of nodes: a slow link shows beside its peers.

Up to `ALL_PAIRS` members meet each other all (a round-robin tournament: in each round everybody is in one
pair). More meet in two rounds of random pairs: a member whose pairs are slow in both is the slow one, a pair
that is slow in one round only was its partner's doing (as dlrover's network check does).
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from ddpdoctor.evidence import PairRow
from ddpdoctor.launch.context import RankContext
from ddpdoctor.launch.defects import pass_defect
from ddpdoctor.launch.probes.base import ProbeError, synchronize, word_exception

ALL_PAIRS = 8
"""Members up to which all pairs are tried: 7 rounds."""

SEED = 20240229
"""Any number: every rank must draw the same pairs."""

TRIAL_BYTES = 256 * 1024
"""First message of a pair; from its time follows how much is sent."""

TRIALS = 2
"""The better of two counts: a busy moment must not make a pair send less than its peers."""

RANK_BYTES, NODE_BYTES = 1024 * 1024, 4 * 1024 * 1024
"""Full messages; between nodes large enough to outgrow socket buffers (4 MiB, net.ipv4.tcp_wmem)."""

REPEATS = 5
"""The best of five counts: other work can only make a message slower."""

PATIENCE_S = 1.0
"""A pair whose full messages would take longer in all sends trial-sized ones instead: 4 MiB x 5 in 1 s is
21 MB/s, a sixth of gigabit Ethernet."""


def probe_pairs(ctx: RankContext) -> None:
    """Send between pairs of ranks, and between the first ranks of each pair of nodes, in both directions.

    Emits a `PairRow` for each direction, from the rank that sent. With one rank on each node the pairs of
    nodes are those of ranks and are emitted once, as nodes.

    Raises:
        ProbeError: a message failed.
    """
    if ctx.world_size < 2:
        return
    try:
        homes = _gather_homes(ctx)
        leaders = [rank for rank, (_, local) in enumerate(homes) if local == 0]
        if len(leaders) < ctx.world_size:
            _meet(ctx, "rank", list(range(ctx.world_size)), list(range(ctx.world_size)), RANK_BYTES)
        if len(leaders) > 1:
            _meet(ctx, "node", leaders, [homes[rank][0] for rank in leaders], NODE_BYTES)
    except Exception as problem:
        pass_defect(problem)
        raise ProbeError(f"pairs: {word_exception(problem)}") from problem


def plan_rounds(members: int) -> list[list[tuple[int, int]]]:
    """Return rounds of disjoint pairs of members 0 to ``members`` - 1."""
    if members <= ALL_PAIRS:
        return _plan_tournament(members)
    generator = random.Random(SEED)
    rounds = []
    for _ in range(2):
        order = generator.sample(range(members), members)
        rounds.append(list(zip(order[::2], order[1::2], strict=False)))
    return rounds


def _plan_tournament(members: int) -> list[list[tuple[int, int]]]:
    """Return the rounds of the circle method; with an odd number one member sits out in each round."""
    circle: list[int | None] = [*range(members)]
    if members % 2:
        circle.append(None)
    rounds = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        paired = zip(circle[:half], reversed(circle[half:]), strict=True)
        rounds.append([(a, b) for a, b in paired if a is not None and b is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return rounds


def _gather_homes(ctx: RankContext) -> list[tuple[int, int]]:
    """Return (node, local rank) of every rank."""
    mine = torch.tensor([ctx.node, ctx.local_rank], dtype=torch.int64, device=ctx.device)
    everyone = [torch.empty_like(mine) for _ in range(ctx.world_size)]
    dist.all_gather(everyone, mine)
    return [(int(home[0]), int(home[1])) for home in everyone]


def _meet(ctx: RankContext, level: str, ranks: Sequence[int], names: Sequence[int], count: int) -> None:
    """Go through all rounds; ``ranks`` are the members' global ranks and ``names`` what rows call them."""
    buffer = torch.zeros(count, dtype=torch.uint8, device=ctx.device)
    for number, pairs in enumerate(plan_rounds(len(ranks))):
        ctx.note(f"pairs of {level}s, round {number + 1}")
        for first, second in pairs:
            for source, target in ((first, second), (second, first)):
                if ctx.rank == ranks[source]:
                    size, seconds = send_timed(ctx, ranks[target], buffer)
                    bandwidth = size / seconds / 1e9
                    row = PairRow(names[source], names[target], level, size, seconds, bandwidth, number)
                    ctx.emit("pairs", row)
                elif ctx.rank == ranks[target]:
                    receive_timed(ctx, ranks[source], buffer)
        dist.barrier()


def send_timed(ctx: RankContext, peer: int, buffer: torch.Tensor) -> tuple[int, float]:
    """Send to ``peer``, which runs `receive_timed`; return the bytes of a message and its best seconds.

    A message's time ends when the peer's one-byte answer is here, so that nothing is measured that only sits
    in a socket's buffer. The sender decides how much is sent and tells the peer.
    """
    _send_once(ctx, peer, buffer[:TRIAL_BYTES])  # the first message makes the connection
    trial = min(_send_once(ctx, peer, buffer[:TRIAL_BYTES]) for _ in range(TRIALS))
    expected = trial * buffer.numel() / TRIAL_BYTES * REPEATS
    size = buffer.numel() if expected <= PATIENCE_S else TRIAL_BYTES
    dist.send(torch.tensor([size], dtype=torch.int64, device=ctx.device), peer)
    return size, min(_send_once(ctx, peer, buffer[:size]) for _ in range(REPEATS))


def receive_timed(ctx: RankContext, peer: int, buffer: torch.Tensor) -> None:
    """Receive what ``peer`` sends in `send_timed`, and answer."""
    answer = torch.zeros(1, dtype=torch.uint8, device=ctx.device)
    for _ in range(1 + TRIALS):
        dist.recv(buffer[:TRIAL_BYTES], peer)
        dist.send(answer, peer)
    size = torch.zeros(1, dtype=torch.int64, device=ctx.device)
    dist.recv(size, peer)
    for _ in range(REPEATS):
        dist.recv(buffer[: int(size.item())], peer)
        dist.send(answer, peer)


def _send_once(ctx: RankContext, peer: int, message: torch.Tensor) -> float:
    answer = torch.empty(1, dtype=torch.uint8, device=ctx.device)
    begun = time.perf_counter()
    dist.send(message, peer)
    dist.recv(answer, peer)
    synchronize(ctx.device)
    return time.perf_counter() - begun
