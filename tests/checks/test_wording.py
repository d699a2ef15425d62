"""The helpers that checks share: words, places, commands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import Interface, Launch, RankSet
from ddpdoctor.testing import make_node, make_world
from ddpdoctor_checks.common.commands import examine_again, repeat_launch, start_torchrun
from ddpdoctor_checks.common.places import (
    Places,
    choose_interface,
    is_loopback,
    join_endpoint,
    on_one_machine,
    routable_addresses,
    split_endpoint,
)
from ddpdoctor_checks.common.wording import (
    count_of,
    find_minority,
    fold_values,
    format_age,
    format_bytes,
    format_number,
    join_words,
    name_set,
    quote,
)


@pytest.mark.parametrize(
    ("words", "text"),
    [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (list("abc"), "a, b and c"),
     (list("abcdef"), "a, b, c, d, e and f"), (list("abcdefgh"), "a, b, c, d, e and 3 more")],
)  # fmt: skip
def test_words_are_joined_and_counted_when_many(words: list[str], text: str) -> None:
    assert join_words(words) == text


def test_numbers_are_said_as_people_say_them() -> None:
    assert [count_of(n, "rank") for n in (0, 1, 16384)] == ["0 ranks", "1 rank", "16,384 ranks"]
    assert count_of(2, "is", "are") == "2 are"
    assert [format_number(n) for n in (2.0, 2.5, 16384)] == ["2", "2.5", "16,384"]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1000, "1000 B"),
        (1024, "1 KiB"),
        (64 << 20, "64 MiB"),
        (3 << 29, "1.5 GiB"),
        (5 << 40, "5.0 TiB"),
    ],
)
def test_sizes_have_binary_units(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(40, "40 s"), (119, "119 s"), (600, "10 min"), (9000, "2.5 h"), (260000, "3 days")]
)
def test_ages_are_rounded_to_what_matters(seconds: float, text: str) -> None:
    assert format_age(seconds) == text


def test_values_are_quoted_for_a_shell_and_cut() -> None:
    assert quote("eth0") == "eth0"
    assert quote("a b") == "'a b'"
    assert len(quote("x" * 500)) <= 64


def test_values_fold_with_the_largest_group_first() -> None:
    groups = fold_values({0: "a", 1: None, 2: "b", 3: "b", 4: "a", 5: "b"})
    assert [(group.value, str(group.who)) for group in groups] == [("b", "2-3,5"), ("a", "0,4"), (None, "1")]
    assert find_minority(groups) == RankSet([0, 1, 4])
    assert find_minority(fold_values({0: "a", 1: "b"})) == RankSet([0, 1])
    assert find_minority(fold_values({0: "a", 1: "a"})) == RankSet()


def test_many_scattered_ranks_are_counted() -> None:
    assert name_set(RankSet([1])) == "rank 1"
    assert name_set(RankSet(), "node") == "no node"
    assert name_set(RankSet(range(0, 100, 2))).startswith("50 ranks (0, 2, 4,")


@pytest.mark.parametrize(
    ("endpoint", "host", "port"),
    [("head:29500", "head", 29500), ("head", "head", None), ("[fd00::1]:29500", "fd00::1", 29500),
     ("[fd00::1]", "fd00::1", None), ("fd00::1", "fd00::1", None), ("head:x", "head", None)],
)  # fmt: skip
def test_endpoints_are_split(endpoint: str, host: str, port: int | None) -> None:
    assert split_endpoint(endpoint) == (host, port)
    if port is not None:
        assert join_endpoint(host, port) == endpoint


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.0.1.1", "127.255.0.9", "::1", "[::1]", "localhost", "::ffff:127.0.0.1"]
)
def test_addresses_of_the_machine_itself(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize("address", ["10.0.0.1", "head", "fe80::1%eth0", "", "1270.0.0.1", "local"])
def test_addresses_of_others(address: str) -> None:
    assert not is_loopback(address)


def test_interface_of_the_route_goes_first_then_what_others_use() -> None:
    cards = tuple(
        Interface(name, (f"10.{i}.0.1",)) for i, name in enumerate(("docker0", "ens1", "ens2", "ens3"))
    )
    node = make_node(0, interfaces=cards, route_interface="ens3")
    assert choose_interface(node) is cards[3]
    assert choose_interface(replace(node, route_interface="lo"), ["ens2"]) is cards[2]
    assert choose_interface(replace(node, route_interface=None)) is cards[1]
    assert choose_interface(replace(node, route_interface=None, interfaces=cards[:1])) is None


def test_link_local_addresses_are_of_no_use_to_others() -> None:
    card = Interface("eth0", ("fe80::1%eth0", "169.254.1.1", "fd00::2", "odd"))
    assert routable_addresses(card) == ("fd00::2",)


def test_ranks_of_nodes_that_never_reported_are_those_of_the_launch() -> None:
    world = make_world(3, 4)
    here = replace(world, ranks=world.ranks[:4], nodes=world.nodes[:1])
    assert Places(here).ranks([0, 2]) == RankSet([0, 1, 2, 3, 8, 9, 10, 11])
    assert Places(here).host(2) == "node 2"
    # Another launcher tells only the size of the world: nproc is 1 there.
    external = replace(here, ranks=(), launch=replace(here.launch, nproc=1))
    assert Places(external).ranks([2]) == RankSet([8, 9, 10, 11])


def test_nodes_are_one_machine_only_when_all_say_so() -> None:
    world = make_world(2, 1)
    same = tuple(make_node(node, boot_id="one") for node in range(2))
    assert on_one_machine(replace(world, nodes=same))
    assert not on_one_machine(replace(world, nodes=same[:1]))
    assert not on_one_machine(replace(world, nodes=tuple(replace(n, boot_id=None) for n in same)))
    assert not on_one_machine(world)


STATIC = Launch(
    nnodes=2, nproc=4, world_size=8, node_rank=1, master_addr="head", master_port=29511, rdzv_backend="static"
)


@pytest.mark.parametrize(
    ("launch", "options", "command"),
    [
        (STATIC, {}, "ddpdoctor check --nnodes 2 --node-rank 1 --nproc 4 --master-addr head --master-port 29511"),
        (STATIC, {"node_rank": 0, "address": "10.0.0.1", "port": 1234},
         "ddpdoctor check --nnodes 2 --node-rank 0 --nproc 4 --master-addr 10.0.0.1 --master-port 1234"),
        (replace(STATIC, rdzv_backend="c10d", rdzv_endpoint="[fd00::1]:29511", rdzv_id="job"), {},
         "ddpdoctor check --nnodes 2 --nproc 4 --rdzv-backend c10d --rdzv-endpoint '[fd00::1]:29511' --rdzv-id job"),
        (replace(STATIC, launcher="torchrun"), {"local_address": "10.0.0.2"},
         "torchrun --nnodes 2 --node-rank 1 --nproc-per-node 4 --master-addr head --master-port 29511 "
         "--local-addr 10.0.0.2 -m ddpdoctor check"),
        (Launch(nproc=4, world_size=4, master_addr="127.0.0.1", master_port=41231), {}, "ddpdoctor check --nproc 4"),
        (Launch(nproc=4, world_size=4, master_addr="127.0.0.1", master_port=41231), {"port": 29501},
         "ddpdoctor check --nproc 4 --master-port 29501"),
    ],
)  # fmt: skip
def test_launch_is_repeated_in_its_launchers_own_words(
    launch: Launch, options: dict[str, Any], command: str
) -> None:
    assert repeat_launch(launch, **options) == command


def test_training_script_is_started_like_the_check() -> None:
    assert start_torchrun(STATIC, "--rdzv-conf", "is_host=1") == (
        "torchrun --nnodes 2 --nproc-per-node 4 --master-addr head --master-port 29511 --rdzv-conf is_host=1 train.py"
    )


def test_examining_again_keeps_world_and_model() -> None:
    launch = Launch(nproc=3, world_size=3, model="my models/net.py:make")
    assert examine_again(launch, "--only", "ddp", settings="A=1") == (
        "A=1 ddpdoctor check --nproc 3 --model 'my models/net.py:make' --only ddp"
    )
    under = Launch(nproc=2, world_size=4, nnodes=2, launcher="srun", master_addr="a", master_port=1)
    assert examine_again(under, "-v").endswith("python -m ddpdoctor check -v")
