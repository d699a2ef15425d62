"""Sends and receives that wait for their other side: which is never made, and which is on its way."""

from __future__ import annotations

from dataclasses import replace

from ddpdoctor.evidence import RankSet
from tests.checks.standing import (
    at,
    collective,
    judge,
    point,
    proved,
    stand,
)


def test_a_send_that_was_made_is_on_its_way() -> None:
    stands = [
        stand(0, point("recv", 1, 3, 9)),
        stand(1, point("isend", 0, 3, 20), collective("barrier", 1, 21, world=2)),
    ]
    assert judge(stands) is None


def test_a_send_that_was_never_made_is_unmatched() -> None:
    stands = [
        stand(0, point("recv", 1, 3, 9)),
        stand(1, point("isend", 0, 2, 20), collective("barrier", 1, 21, world=2)),
    ]
    found = proved(stands)
    assert (found.code, found.ranks, found.victims) == ("COL011", RankSet([1]), RankSet([0]))


def test_how_often_each_side_has_called_is_said() -> None:
    stands = [
        stand(2, point("recv", 1, 4, 9)),
        stand(1, point("send", 2, 3, 20), collective("barrier", 1, 21, world=3)),
    ]
    found = proved([stand(0, collective("barrier", 1, 21, world=3)), *stands])
    assert (found.code, found.ranks, found.victims) == ("COL011", RankSet([1]), RankSet([2]))
    assert found.evidence[-1].text == "rank 2 has issued 4 receives from rank 1, and rank 1 3 sends to it"


def test_two_that_receive_first_are_both_named() -> None:
    found = proved([stand(0, point("recv", 1, 1, 9)), stand(1, point("recv", 0, 1, 9))])
    assert (found.code, found.ranks) == ("COL011", RankSet([0, 1]))


def test_tags_that_differ_do_not_meet() -> None:
    found = proved([stand(0, point("recv", 1, 1, 9, tag=5)), stand(1, point("send", 0, 1, 12, tag=6))])
    assert found.code == "COL011"
    assert "tag 5" in found.message
    assert "tag 6" in found.message


def test_a_send_and_its_receive_that_both_wait_are_on_their_way() -> None:
    assert judge([stand(0, point("recv", 1, 1, 9)), stand(1, point("send", 0, 1, 12))]) is None


def test_a_receive_from_any_is_stuck_only_where_nobody_is_left_to_send() -> None:
    waits = stand(0, point("recv", None, 3, 9))
    behind = [stand(rank, point("send", 0, 1, 20), collective("barrier", 1, 30, world=3)) for rank in (1, 2)]
    assert proved([waits, *behind]).code == "COL011"
    unseen = judge([waits, *behind], world=4)  # the fourth may send
    assert unseen is not None
    assert unseen.details["proof"] is False
    sent = [stand(rank, point("send", 0, 2, 20), collective("barrier", 1, 30, world=3)) for rank in (1, 2)]
    assert judge([waits, *sent]) is None


def test_a_send_that_was_asked_for_and_is_never_received_names_who_went_past_it() -> None:
    """A ring in which rank 2 leaves its receive out, and comes to the barrier."""
    wait = at(9, "shift", "work.wait()")
    sends = replace(point("isend", 2, 6, 8), asynchronous=True)
    held = replace(stand(1, sends, frames=(wait,), frames_before=(wait,)), call=None)
    passed = [
        stand(rank, collective("barrier", 1, 15), counts={"recv 1 0 0": 5} if rank == 2 else {})
        for rank in (0, 2, 3)
    ]
    found = proved([passed[0], held, *passed[1:]])
    assert (found.code, found.ranks, found.victims) == ("COL011", RankSet([2]), RankSet([1]))
    assert "rank 1 waits for isend to rank 2" in found.message.lower()
    assert any(
        "rank 1 has issued 6 sends to rank 2, and rank 2 5 receives from it" in each.text
        for each in found.evidence
    )
