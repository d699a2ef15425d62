"""What nodes on which nothing moves tell each other, and what one makes of it when another ends the job."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from ddpdoctor.evidence.codec import decode, encode
from ddpdoctor.evidence.job import Moment
from ddpdoctor.evidence.standstill import Stand, Standstill
from ddpdoctor.watch.live.monitor import Monitor
from ddpdoctor.watch.live.policy import Policy, Ruling
from ddpdoctor.watch.live.stillness import Exchange

OWN = Standstill(Moment(0, 0), 20.0, 2.0, (Stand(0), Stand(1)), 4)
THEIRS = replace(OWN, stands=(Stand(2), Stand(3)))


def tell(run: Path, checked: int, look: Standstill = THEIRS, node: int = 1) -> None:
    """Put down what the agent of the head has heard of another node."""
    text = json.dumps({"checked": checked, "look": encode(look)})
    (run / "nodes").mkdir(exist_ok=True)
    (run / "nodes" / f"still-{node}").write_bytes(base64.b64encode(zlib.compress(text.encode())))


def ranks(look: Standstill | None) -> list[tuple[int, int]]:
    assert look is not None
    return [(stand.rank, stand.node) for stand in look.stands]


def test_nodes_are_joined_once_the_other_has_been_seen_again(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    assert exchange.join(OWN) is None
    tell(tmp_path, 1)
    assert exchange.join(OWN) is None
    assert exchange.join(OWN) is None
    tell(tmp_path, 2)
    assert ranks(exchange.join(OWN)) == [(0, 0), (1, 0), (2, 1), (3, 1)]


def test_node_that_has_moved_meanwhile_is_waited_for_again(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    tell(tmp_path, 1)
    assert exchange.join(OWN) is None
    tell(tmp_path, 2, replace(THEIRS, after_s=25.0))
    assert exchange.join(OWN) is None
    tell(tmp_path, 3, replace(THEIRS, after_s=25.0))
    assert len(ranks(exchange.join(OWN))) == 4


def test_what_was_told_counts_at_once_where_another_node_has_ended_the_job(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    assert exchange.join(OWN, ended=True) is None
    tell(tmp_path, 1)
    assert len(ranks(exchange.join(OWN, ended=True))) == 4


def test_not_all_nodes_are_no_job(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    tell(tmp_path, 1, replace(THEIRS, stands=(Stand(2),)))
    assert exchange.join(OWN, ended=True) is None


@pytest.mark.parametrize(
    ("ruling", "stage"),
    [(Ruling(proved=True), "proved"), (Ruling(stalled=True), "confirmed"), (Ruling(), None)],
)
def test_look_at_all_nodes_is_kept_where_another_one_ends_the_job(
    tmp_path: Path, ruling: Ruling, stage: str | None
) -> None:
    judged: list[Standstill] = []
    told: list[str] = []

    def judge(look: Standstill) -> Ruling:
        judged.append(look)
        return ruling

    monitor = Monitor(tmp_path, tmp_path, judge, Policy(), told.append)
    monitor._shared = OWN
    tell(tmp_path, 1)
    (tmp_path / "nodes" / "stop").write_text("COL002: rank 3 is wrong")
    monitor._share(10.0, [])
    assert monitor.decided
    assert monitor.elsewhere == "COL002: rank 3 is wrong"
    assert told == ["ended on another node: COL002: rank 3 is wrong"]
    assert [len(look.stands) for look in judged] == [4]
    kept = [
        decode(Standstill, json.loads(path.read_text())) for path in (tmp_path / "snapshots").glob("0*.json")
    ]
    assert [(look.stage, look.stopped, look.joined) for look in kept] == (
        [(stage, True, True)] if stage else []
    )
