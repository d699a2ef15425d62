"""The troubles that the harness can make: each bites as it says, where it says, and can be taken back."""

from __future__ import annotations

import pytest

from .harness import Hosts
from .traffic import LOST_LIMIT_S, PORT, seconds, send, serve, wait_until

pytestmark = pytest.mark.root


def test_dropped_ports_are_lost_in_one_direction_and_others_pass(pair: Hosts) -> None:
    first, second = pair
    for host in pair:
        serve(host, 40000)
    pair.drop_ports(first, second, 32768, 60999)
    assert send(first, second.address, port=40000, limit_s=LOST_LIMIT_S) == "TimeoutError"
    assert send(first, second.address, port=PORT) == "ok"
    assert send(second, first.address, port=40000) == "ok"
    pair.heal()
    assert send(first, second.address, port=40000) == "ok"


def test_dropped_ports_may_be_lost_both_ways_or_rejected(pair: Hosts) -> None:
    first, second = pair
    pair.drop_ports(first, second, PORT, PORT, both_ways=True)
    assert send(first, second.address, limit_s=LOST_LIMIT_S) == "TimeoutError"
    assert send(second, first.address, limit_s=LOST_LIMIT_S) == "TimeoutError"
    pair.heal()
    pair.drop_ports(first, second, PORT, PORT, reject=True)
    assert send(first, second.address) == "ConnectionRefusedError"


def test_large_packets_vanish_and_small_ones_pass(pair: Hosts) -> None:
    first, second = pair
    pair.drop_larger(first, second, 1000)
    assert send(first, second.address, 600) == "ok"
    assert send(first, second.address, 50_000, limit_s=LOST_LIMIT_S) == "TimeoutError"
    pair.heal()
    assert send(first, second.address, 50_000) == "ok"


def test_packets_below_the_limit_pass_however_much_is_sent(pair: Hosts) -> None:
    pair.drop_larger(pair[0], pair[1], 1500)  # the MTU: no packet on the wire is larger
    assert send(pair[0], pair[1].address, 2_000_000) == "ok"


def test_switch_with_smaller_mtu_is_a_black_hole(pair: Hosts) -> None:
    for host in pair:
        host.set_mtu(9000, switch=False)
    assert send(pair[0], pair[1].address, 1000) == "ok"
    assert send(pair[0], pair[1].address, 50_000, limit_s=LOST_LIMIT_S) == "TimeoutError"


def test_smaller_mtu_that_the_host_knows_breaks_nothing(pair: Hosts) -> None:
    pair[0].set_mtu(1300)
    assert send(pair[0], pair[1].address, 200_000) == "ok"
    assert send(pair[1], pair[0].address, 200_000) == "ok"


def test_everything_may_vanish_between_two_hosts_only() -> None:
    with Hosts(3) as hosts:
        serve(hosts[1])
        hosts.drop_all(hosts[0], hosts[1])
        assert send(hosts[0], hosts[1].address, limit_s=LOST_LIMIT_S) == "TimeoutError"
        assert send(hosts[2], hosts[1].address) == "ok"


def test_rate_limit_slows_one_link_both_ways_until_lifted() -> None:
    size, mbit = 2_000_000, 16  # one second; the bucket lets 64 KiB of it through at once
    with Hosts(3) as hosts:
        for host in hosts:
            serve(host)
        slow, fast, other = hosts
        slow.limit_rate(mbit)
        assert seconds(slow, fast, size) > 0.7
        assert seconds(fast, slow, size) > 0.7
        slow.unlimit_rate()
        # Milliseconds here; the best of a few tries, as the machine may be busy with something else.
        assert min(seconds(slow, other, size) for _ in range(5)) < 0.5


def test_pair_limit_slows_that_pair_only() -> None:
    size, mbit = 2_000_000, 16
    with Hosts(3) as hosts:
        for host in hosts:
            serve(host)
        first, second, third = hosts
        hosts.limit_pair(first, second, mbit)
        assert seconds(first, second, size) > 0.7
        assert seconds(second, first, size) > 0.7
        assert min(seconds(first, third, size) for _ in range(5)) < 0.5


@pytest.mark.parametrize("cable", [True, False], ids=["cable", "interface"])
def test_link_goes_down_and_comes_back(pair: Hosts, cable: bool) -> None:
    first, second = pair
    first.link_down(cable=cable)
    assert send(second, first.address, limit_s=LOST_LIMIT_S) in ("TimeoutError", "OSError")
    first.link_up(cable=cable)
    assert wait_until(lambda: send(second, first.address, limit_s=LOST_LIMIT_S) == "ok")
