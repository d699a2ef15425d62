"""The rendezvous port, names and interface variables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import (
    Absent,
    Evidence,
    HostMatch,
    Interface,
    Launch,
    PortProbe,
    RankSet,
    Rendezvous,
    RendezvousFile,
    Resolution,
)
from ddpdoctor.testing import (
    assert_finds,
    assert_passes,
    assert_status,
    judge_one,
    make_node,
    make_rank,
    make_world,
)
from ddpdoctor_checks.network import (
    find_file_stale,
    find_host_unmatched,
    find_interface_missing,
    find_loopback_advertised,
    find_master_unresolvable,
    find_peer_unresolvable,
    find_port_invalid,
    find_port_taken,
)


def with_launch(world: Evidence, **changes: Any) -> Evidence:
    return replace(world, launch=replace(world.launch, **changes))


def with_nodes(count: int, **changes: Any) -> Evidence:
    """Return a world of ``count`` nodes of which the last differs from a healthy one."""
    world = make_world(count, 2)
    odd = make_node(count - 1, **changes)
    return replace(world, nodes=(*world.nodes[:-1], odd))


# NET001


def test_taken_port_is_named_with_its_holder() -> None:
    probe = PortProbe(
        0, 29500, "taken", None, "Address already in use", holder_pid=4242, holder_command="python old.py"
    )
    found = assert_finds(find_port_taken, make_world(ports=(probe,)), code="NET001", severity="error")
    assert found.message == "The rendezvous port 29500 on node-0 is held by process 4242 (python old.py)."
    assert found.ranks == RankSet([0, 1])
    assert found.nodes == ("node-0",)
    commands = [fix.command for fix in found.fix]
    assert "kill 4242" in commands
    assert any(command is not None and "29501" in command for command in commands)


def test_holder_that_cannot_be_seen_is_not_guessed() -> None:
    world = make_world(2, 2, ports=(PortProbe(0, 29500, "taken"),))
    found = assert_finds(find_port_taken, world)
    assert "may not see" in found.message
    assert any("ss -ltnp 'sport = :29500'" in (fix.command or "") for fix in found.fix)
    assert not any("standalone" in (fix.command or "") for fix in found.fix)


def test_port_that_our_own_rank_holds_is_free() -> None:
    world = make_world(ports=(PortProbe(0, 29500, "taken", holder_pid=1000),))
    assert_passes(find_port_taken, world)


def test_port_that_is_no_store_is_told_by_the_node_that_connects() -> None:
    probe = PortProbe(1, 29500, "foreign", "node-0", "no answer within 15 s")
    world = with_launch(make_world(2, 2), rdzv_backend="static")
    found = assert_finds(find_port_taken, replace(world, ports=(probe,)))
    assert found.confidence == "medium"
    assert found.nodes == ("node-0",)
    assert (found.ranks, found.victims) == (RankSet([0, 1]), RankSet([2, 3]))
    assert "as node-1 sees it" in found.message


def test_port_that_accepts_and_says_nothing_may_be_the_store_itself() -> None:
    """The kernel accepts for a process that is stopped or gets no processor: that is no other program yet."""
    probe = PortProbe(1, 29500, "silent", "node-0", "has not answered within 60.0 s (--join-timeout 60)")
    world = with_launch(make_world(2, 2), rdzv_backend="static")
    found = assert_finds(find_port_taken, replace(world, ports=(probe,)))
    assert found.confidence == "low"
    assert (
        "another program holds the port, or the process of the store is stopped or starved" in found.message
    )


def test_owner_of_a_foreign_port_is_not_guessed_where_names_decide_who_hosts() -> None:
    world = with_launch(make_world(2, 2), rdzv_backend="c10d", rdzv_endpoint="head:29500")
    probe = PortProbe(0, 29500, "foreign", "head", "no answer within 15 s")
    found = assert_finds(find_port_taken, replace(world, ports=(probe,)))
    assert (found.ranks, found.nodes) == (RankSet(), ("head",))


def test_same_pid_on_another_node_is_not_ours() -> None:
    world = make_world(2, 2, ports=(PortProbe(1, 29500, "taken", holder_pid=1000),))
    assert_finds(find_port_taken, world)


def test_port_that_nobody_probed_is_unknown() -> None:
    world = make_world(ports=(), absent={"ports": Absent("no socket could be opened")})
    assert assert_status(find_port_taken, world, "unknown") == "no socket could be opened"


# NET009


def test_privileged_port_is_invalid_here() -> None:
    probe = PortProbe(0, 80, "denied", error="Permission denied")
    found = assert_finds(find_port_invalid, make_world(ports=(probe,)), severity="error")
    assert "80 is privileged" in found.message
    assert (
        found.fix[0].command
        == "ddpdoctor check --nproc 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:29500 --rdzv-id made-up"
    )


def test_port_out_of_range_does_not_exist() -> None:
    found = assert_finds(find_port_invalid, make_world(ports=(PortProbe(0, 99999, "invalid"),)))
    assert "99999 does not exist" in found.message


@pytest.mark.parametrize("value", ["66660", "0", "port", "-1"])
def test_master_port_of_the_shell_that_is_none_is_a_warning(value: str) -> None:
    world = with_nodes(1, variables={"MASTER_PORT": value})
    found = assert_finds(find_port_invalid, world, severity="warning")
    assert value in found.message
    assert found.details["port"] == value


@pytest.mark.parametrize("value", ["29500", "1", "65535"])
def test_ordinary_ports_are_valid(value: str) -> None:
    assert_passes(find_port_invalid, with_nodes(1, variables={"MASTER_PORT": value}))


# NET010


def file_world(*files: RendezvousFile) -> Evidence:
    return with_nodes(1, rendezvous_files=files)


def test_file_with_contents_is_stale() -> None:
    file = RendezvousFile("/tmp/my rdzv", "DIST_URL", True, size=812, age_s=86400.0 * 3)
    found = assert_finds(find_file_stale, file_world(file), severity="warning")
    assert "/tmp/my rdzv" in found.message
    assert "left by an earlier run" in found.message
    assert "3 days" in found.message
    assert found.fix[0].command == "rm -f '/tmp/my rdzv'"


def test_file_that_others_have_open_is_shared() -> None:
    file = RendezvousFile("/tmp/rdzv", "DIST_URL", True, size=812, open_by=(77, 78))
    found = assert_finds(find_file_stale, file_world(file))
    assert "in use by process 77 and process 78" in found.message
    assert found.fix[0].command is not None
    assert found.fix[0].command.startswith("export DIST_URL=file://")


@pytest.mark.parametrize(
    "file", [RendezvousFile("/tmp/f", "DIST_URL"), RendezvousFile("/tmp/f", "DIST_URL", True, size=0)]
)
def test_file_that_is_empty_or_not_there_is_fresh(file: RendezvousFile) -> None:
    assert_passes(find_file_stale, file_world(file))


def test_without_a_file_rendezvous_there_is_nothing_to_judge() -> None:
    assert "no file://" in assert_status(find_file_stale, file_world(), "skipped")


def test_files_that_nobody_looked_for_are_unknown() -> None:
    assert_status(find_file_stale, with_nodes(1, rendezvous_files=None), "unknown")


# NET002


def resolve(node: int, name: str = "head.invalid", *addresses: str) -> Resolution:
    error = None if addresses else "Name or service not known (gai error -2)"
    return Resolution(node, name, "master", addresses=addresses, error=error)


def test_unresolvable_master_is_named_with_who_knows_it() -> None:
    asked = (resolve(0, "head", "10.0.0.1"), resolve(1, "head"), resolve(2, "head", "10.0.0.1"))
    found = assert_finds(find_master_unresolvable, make_world(3, 2, resolutions=asked), severity="error")
    assert (
        found.message == "The rendezvous host head cannot be resolved on node-1; node-0 and node-2 find it."
    )
    assert found.ranks == RankSet([2, 3])
    assert found.nodes == ("node-1",)
    commands = [fix.command or "" for fix in found.fix]
    assert "echo '10.0.0.1 head' | sudo tee -a /etc/hosts" in commands
    assert any("--rdzv-endpoint 10.0.0.1:29500" in command for command in commands)


def test_master_that_nobody_finds_gets_the_address_of_node_0() -> None:
    world = make_world(2, 2, resolutions=(resolve(0), resolve(1)))
    found = assert_finds(find_master_unresolvable, world)
    assert found.nodes == ("node-0", "node-1")
    assert any("10.0.0.1" in (fix.command or "") for fix in found.fix)


def test_loopback_answer_is_not_offered_to_others() -> None:
    world = make_world(2, 2, resolutions=(resolve(0, "head", "127.0.1.1"), resolve(1, "head")))
    found = assert_finds(find_master_unresolvable, world)
    assert not any("127.0" in (fix.command or "") for fix in found.fix)


def test_master_that_resolves_everywhere_passes() -> None:
    assert_passes(find_master_unresolvable, make_world(3, 2))


def test_world_without_a_name_to_resolve_is_skipped() -> None:
    assert_status(find_master_unresolvable, make_world(), "skipped")


# NET008


def ask_peer(node: int, of_node: int, *addresses: str) -> Resolution:
    return Resolution(node, f"node-{of_node}", "peer", of_node, addresses, None if addresses else "unknown")


def test_unresolvable_name_of_node_0_is_an_error() -> None:
    world = make_world(2, 2, resolutions=(ask_peer(1, 0), ask_peer(0, 1, "10.0.0.2")))
    found = assert_finds(find_peer_unresolvable, world, code="NET008", severity="error")
    assert found.message == "node-1 cannot resolve node-0, the name under which node 0 publishes itself."
    assert found.pairs == (("node-1", "node-0"),)
    assert found.ranks == RankSet([0, 1])
    assert found.victims == RankSet([2, 3])
    assert "--local-addr 10.0.0.1" in (found.fix[0].command or "")


def test_unresolvable_name_of_another_node_is_a_warning() -> None:
    world = make_world(2, 2, resolutions=(ask_peer(1, 0, "10.0.0.1"), ask_peer(0, 1)))
    assert_finds(find_peer_unresolvable, world, severity="warning")


@pytest.mark.parametrize(
    "launch",
    [{"rdzv_backend": "static"}, {"launcher": "srun", "rdzv_backend": "env"}, {"launcher": "mpirun"}],
)
def test_names_that_nobody_uses_are_a_note(launch: dict[str, str]) -> None:
    world = with_launch(make_world(2, 2, resolutions=(ask_peer(1, 0),)), **launch)
    assert_finds(find_peer_unresolvable, world, severity="info")


def test_peers_that_nobody_asked_for_are_unknown_only_where_names_are_used() -> None:
    silent = make_world(2, 2, resolutions=(resolve(0, "head", "10.0.0.1"),))
    assert_status(find_peer_unresolvable, silent, "unknown")
    assert_status(find_peer_unresolvable, with_launch(silent, rdzv_backend="static"), "skipped")
    assert_status(find_peer_unresolvable, with_launch(silent, local_addr="10.0.0.1"), "skipped")


def ask_self(node: int, *addresses: str) -> Resolution:
    return Resolution(node, f"node-{node}", "self", node, addresses, None if addresses else "unknown")


@pytest.mark.parametrize(
    ("nodes", "variables", "severity"),
    [(1, {}, "info"), (1, {"SLURM_JOB_ID": "7"}, "warning"), (2, {}, "warning")],
)
def test_node_that_does_not_know_its_own_name(nodes: int, variables: dict[str, str], severity: str) -> None:
    peers = (ask_peer(1, 0, "10.0.0.1"), ask_peer(0, 1, "10.0.0.2")) if nodes > 1 else ()
    world = make_world(nodes, 2, resolutions=(ask_self(0), *peers))
    world = with_launch(world, variables=variables)
    found = assert_finds(find_peer_unresolvable, world, code="NET008", severity=severity)
    assert found.message == "node-0 cannot resolve its own host name."
    assert found.role == "advice"


def test_node_that_knows_its_own_name_passes() -> None:
    assert_status(find_peer_unresolvable, make_world(resolutions=(ask_self(0, "127.0.1.1"),)), "pass")


def test_single_node_has_no_peers() -> None:
    assert_status(find_peer_unresolvable, make_world(), "skipped")


# NET007


def alone(node: int, error: str | None = "no store") -> Rendezvous:
    return Rendezvous(node, "c10d", "head:29500", 2, (), 4, RankSet(), 60.0, 60.0, error)


def unmatched(*nodes: int, **changes: Any) -> Evidence:
    matches = tuple(
        HostMatch(node, "head:29500", False, (f"node-{node}", f"10.0.0.{node + 1}")) for node in nodes
    )
    rows = tuple(alone(node) for node in nodes)
    return make_world(2, 2, host_matches=matches, rendezvous=rows, **changes)


def test_endpoint_that_is_nobody_is_told_with_all_names() -> None:
    found = assert_finds(find_host_unmatched, unmatched(0, 1), code="NET007", severity="error")
    assert "None of 2 nodes recognizes itself as the rendezvous host head" in found.message
    assert "node-0 is node-0 and 10.0.0.1" in found.message
    assert found.ranks == RankSet.span(4)
    assert any("is_host=1" in (fix.command or "") for fix in found.fix)
    assert any("--rdzv-endpoint node-0:29500" in (fix.command or "") for fix in found.fix)


def test_one_node_alone_may_well_not_be_the_host() -> None:
    assert "1 of 2 nodes" in assert_status(find_host_unmatched, unmatched(1), "unknown")


def test_node_that_holds_the_address_unknowingly_is_certain() -> None:
    asked = (Resolution(1, "head", "master", addresses=("10.0.0.2",)),)
    found = assert_finds(find_host_unmatched, unmatched(1, resolutions=asked))
    assert found.nodes == ("node-1",)
    assert "holds the address" in found.message
    assert found.ranks == RankSet([2, 3])


def test_rendezvous_that_completed_had_a_host() -> None:
    world = unmatched(0, 1)
    assert_passes(find_host_unmatched, replace(world, rendezvous=make_world(2, 2).rendezvous))


@pytest.mark.parametrize("backend", ["static", "env", None])
def test_fixed_host_needs_no_match(backend: str | None) -> None:
    assert_status(find_host_unmatched, with_launch(unmatched(0, 1), rdzv_backend=backend), "skipped")


def test_endpoint_that_nobody_compared_is_unknown() -> None:
    assert_status(find_host_unmatched, make_world(2, 2, host_matches=()), "unknown")
    assert_status(find_host_unmatched, make_world(1, 2, host_matches=()), "skipped")


# NET003


def test_loopback_in_a_world_of_machines_is_named_with_its_interface() -> None:
    world = with_nodes(3, advertised="127.0.1.1", name_addresses=("127.0.1.1",))
    found = assert_finds(find_loopback_advertised, world, code="NET003", severity="error")
    assert found.message == (
        "node-2 advertises 127.0.1.1 (its host name maps there), which other nodes cannot reach."
    )
    assert found.ranks == RankSet([4, 5])
    assert found.nodes == ("node-2",)
    assert found.fix[0].command == "export GLOO_SOCKET_IFNAME=eth0"


def test_variable_that_names_the_loopback_is_blamed() -> None:
    world = with_nodes(2, advertised="::1", variables={"GLOO_SOCKET_IFNAME": "lo"})
    assert "(GLOO_SOCKET_IFNAME=lo)" in assert_finds(find_loopback_advertised, world).message


def test_interface_of_containers_is_never_recommended() -> None:
    interfaces = (
        Interface("docker0", ("172.17.0.1",)),
        Interface("ens5", ("10.0.0.2",), up=False),
        Interface("ens6", ("10.0.1.2",)),
    )
    world = with_nodes(2, advertised="127.0.0.1", route_interface=None, interfaces=interfaces)
    assert assert_finds(find_loopback_advertised, world).fix[0].command == "export GLOO_SOCKET_IFNAME=ens6"


def test_other_backends_use_the_address_for_cpu_groups_only() -> None:
    world = with_launch(with_nodes(2, advertised="127.0.0.1"), backend="nccl")
    assert_finds(find_loopback_advertised, world, severity="warning")


def test_evidence_of_one_node_alone_is_less_certain() -> None:
    world = make_world(2, 2)
    only = replace(world, nodes=(make_node(0, advertised="127.0.0.1"),))
    assert assert_finds(find_loopback_advertised, only).confidence == "medium"


def test_agents_on_one_machine_may_use_the_loopback() -> None:
    nodes = tuple(make_node(node, advertised="127.0.0.1", boot_id="same") for node in range(2))
    assert_status(find_loopback_advertised, replace(make_world(2, 2), nodes=nodes), "skipped")


def test_single_node_may_use_the_loopback() -> None:
    assert_status(find_loopback_advertised, with_nodes(1, advertised="127.0.0.1"), "skipped")


@pytest.mark.parametrize("address", ["10.0.0.2", "fd00::2", "172.17.0.2", "128.0.0.1"])
def test_other_addresses_are_routable(address: str) -> None:
    assert_passes(find_loopback_advertised, with_nodes(2, advertised=address))


def test_unknown_addresses_are_unknown() -> None:
    nodes = tuple(make_node(node, advertised=None) for node in range(2))
    assert_status(find_loopback_advertised, replace(make_world(2, 2), nodes=nodes), "unknown")


# NET004

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
CARDS = (
    Interface("lo", ("127.0.0.1", "::1"), loopback=True),
    Interface("eth0", ("10.0.0.1",)),
    Interface("eth1", ("10.1.0.1",), up=False),
    Interface("ib0", ()),
)


def interfaces_world(variable: str, value: str, **launch: Any) -> Evidence:
    world = make_world(1, 2)
    node = make_node(0, interfaces=CARDS, variables={variable: value})
    return with_launch(replace(world, nodes=(node,)), **launch)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("eth9", "there is no interface eth9"),
        ("^lo", "^ is NCCL's syntax"),
        ("=eth0", "= is NCCL's syntax"),
        ("eth", "only the beginning of a name"),
        (" eth0", "blanks"),
        ("eth0, lo", "blanks"),
        ("eth0,eth9", "there is no interface eth9"),
        ("ib0", "has no address"),
        ("eth1", "is down"),
    ],
)
def test_gloo_takes_exact_names_only(value: str, words: str) -> None:
    world = interfaces_world(GLOO, value)
    found = assert_finds(find_interface_missing, world, id="net.interface.gloo", severity="error")
    assert words in found.message
    assert "lo, eth0 and eth1" in found.message
    assert found.details["variable"] == GLOO
    assert found.details["value"] == value
    assert found.details["interfaces"] == {"node-0": ["lo", "eth0", "eth1", "ib0"]}
    assert found.fix[0].command == "export GLOO_SOCKET_IFNAME=eth0"
    assert found.ranks == RankSet([0, 1])


@pytest.mark.parametrize("value", ["eth0", "lo", "eth0,lo", "eth0,", "", "x"])
def test_gloo_takes_lists_and_ignores_very_short_values(value: str) -> None:
    assert_passes(find_interface_missing, interfaces_world(GLOO, value), id="net.interface.gloo")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("ens", "beginning with ens"),
        ("=eth", "there is no interface eth"),
        ("^lo,eth", "excludes every interface"),
        ("=^lo", "only at the beginning"),
        ("eth1", "is down"),
        (" eth0", "blanks"),
        ("ib", "beginning with ib"),
    ],
)
def test_nccl_takes_prefixes_exact_names_and_exclusions(value: str, words: str) -> None:
    world = interfaces_world(NCCL, value, backend="nccl")
    found = assert_finds(find_interface_missing, world, id="net.interface.nccl", severity="error")
    assert words in found.message


@pytest.mark.parametrize(
    "value", ["eth", "=eth0", "^docker,lo", "^=eth1", "eth0:9000", "bond,eth", "lo", "", "^"]
)
def test_nccl_finds_an_interface(value: str) -> None:
    assert_passes(
        find_interface_missing, interfaces_world(NCCL, value, backend="nccl"), id="net.interface.nccl"
    )


def test_variable_of_the_backend_that_is_not_used_is_a_note_without_gpus() -> None:
    world = interfaces_world(NCCL, "ens9")
    assert_finds(find_interface_missing, world, id="net.interface.nccl", severity="info")
    assert_finds(find_interface_missing, interfaces_world(GLOO, "ens9", backend="nccl"), severity="warning")


def test_value_copied_to_a_node_with_other_names_is_found_there_only() -> None:
    world = make_world(2, 2)
    other = make_node(1, interfaces=(Interface("ens5", ("10.0.0.2",)),), route_interface="ens5")
    ranks = tuple(make_rank(rank, 2, 4, variables={GLOO: "eth0"}) for rank in range(4))
    found = assert_finds(find_interface_missing, replace(world, nodes=(world.nodes[0], other), ranks=ranks))
    assert found.nodes == ("node-1",)
    assert found.ranks == RankSet([2, 3])
    assert found.fix[0].command == "export GLOO_SOCKET_IFNAME=ens5"


def test_ranks_count_more_than_the_shell_that_launched_them() -> None:
    world = interfaces_world(GLOO, "eth9")
    ranks = tuple(make_rank(rank, 2, 2, variables={GLOO: "eth0"}) for rank in range(2))
    assert_passes(find_interface_missing, replace(world, ranks=ranks), id="net.interface.gloo")


def test_interfaces_that_could_not_be_listed_are_unknown() -> None:
    node = make_node(0, interfaces=(), variables={GLOO: "eth0"})
    world = replace(make_world(), nodes=(node,), ranks=())
    assert_status(find_interface_missing, world, "unknown", id="net.interface.gloo")


def test_healthy_worlds_and_laptops_raise_nothing() -> None:
    laptop = make_node(
        0,
        host="laptop",
        fqdn=None,
        name_addresses=(),
        name_error="Name or service not known (gai error -2)",
        advertised="127.0.0.1",
        advertised_interface="lo",
        route_address="127.0.0.1",
        route_interface="lo",
        interfaces=(Interface("lo", ("127.0.0.1",), loopback=True),),
    )
    for world in (make_world(1, 1), make_world(1, 4), make_world(3, 2)):
        for function in (
            find_port_taken, find_port_invalid, find_file_stale, find_master_unresolvable,
            find_host_unmatched, find_peer_unresolvable, find_loopback_advertised, find_interface_missing,
        ):  # fmt: skip
            calm = replace(world, nodes=(laptop,)) if world.launch.nnodes == 1 else world
            assert judge_one(function, calm)[1] == []


def test_ipv6_only_world_is_healthy() -> None:
    launch = Launch(
        nnodes=2, nproc=1, world_size=2, master_addr="fd00::1", master_port=29500, rdzv_backend="c10d",
        rdzv_endpoint="[fd00::1]:29500",
    )  # fmt: skip
    nodes = tuple(
        make_node(
            node,
            name_addresses=(f"fd00::{node + 1}",),
            advertised=f"fd00::{node + 1}",
            interfaces=(
                Interface("lo", ("::1",), loopback=True),
                Interface("eth0", (f"fd00::{node + 1}", "fe80::1%eth0")),
            ),
            variables={GLOO: "eth0"},
        )
        for node in range(2)
    )
    world = replace(make_world(2, 1), launch=launch, nodes=nodes)
    for function in (
        find_loopback_advertised,
        find_interface_missing,
        find_master_unresolvable,
        find_host_unmatched,
    ):
        assert judge_one(function, world)[1] == []
