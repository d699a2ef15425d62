"""Ranks, launchers, and what must agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import Absent, Evidence, Launch, RankSet, Rendezvous
from ddpdoctor.testing import (
    assert_finds,
    assert_passes,
    assert_status,
    judge_one,
    make_node,
    make_rank,
    make_world,
)
from ddpdoctor_checks.environment import (
    find_launcher_conflict,
    find_rank_duplicated,
    find_variables_differ,
    find_variables_missing,
    find_versions_differ,
    find_world_inconsistent,
)


def with_launch(world: Evidence, **changes: Any) -> Evidence:
    return replace(world, launch=replace(world.launch, **changes))


def in_shell(variables: dict[str, str], nodes: int = 1, nproc: int = 4, **launch: Any) -> Evidence:
    """Return a world whose nodes were all started from a shell with these variables."""
    world = make_world(nodes, nproc)
    facts = tuple(make_node(node, variables=variables) for node in range(nodes))
    return with_launch(replace(world, nodes=facts), **launch)


def with_rank_variables(nproc: int, *settings: dict[str, str], nodes: int = 1) -> Evidence:
    """Return a world whose ranks have these variables too; the last goes for all further ranks."""
    world = make_world(nodes, nproc)
    ranks = tuple(
        replace(rank, variables={**rank.variables, **settings[min(rank.rank, len(settings) - 1)]})
        for rank in world.ranks
    )
    return replace(world, ranks=ranks)


NOTHING = Evidence(absent={"nodes": Absent("stage was cut"), "ranks": Absent("stage was cut")})


@pytest.mark.parametrize(
    "function",
    [find_launcher_conflict, find_rank_duplicated, find_variables_differ, find_variables_missing,
     find_world_inconsistent],
)  # fmt: skip
def test_checks_without_any_environment_are_unknown(function: Any) -> None:
    assert "stage was cut" in assert_status(function, NOTHING, "unknown")


# ENV001


def test_rank_that_could_not_initialise_misses_its_variables() -> None:
    world = make_world(1, 3, initialisations=())
    bare = tuple(replace(rank, variables={"RANK": str(rank.rank)}) for rank in world.ranks[1:])
    found = assert_finds(
        find_variables_missing, replace(world, ranks=(make_full_rank(0, 3), *bare)), severity="error"
    )
    assert found.message == (
        "WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not set in ranks 1-2, started by ddpdoctor: env:// "
        "initialization needs them."
    )
    assert found.ranks == RankSet([1, 2])
    assert found.fix[0].command == "torchrun --nproc-per-node 3 train.py"


def make_full_rank(rank: int, size: int) -> Any:
    variables = {"RANK": "0", "WORLD_SIZE": str(size), "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    return make_rank(rank, size, size, variables=variables)


def test_rank_that_initialised_by_env_missed_nothing() -> None:
    world = make_world(1, 3)
    assert_passes(
        find_variables_missing,
        replace(world, ranks=tuple(replace(r, variables={"RANK": "0"}) for r in world.ranks)),
    )


def test_rank_of_a_shell_that_lacks_the_rest_is_a_warning() -> None:
    found = assert_finds(find_variables_missing, in_shell({"RANK": "0"}), severity="warning")
    assert "RANK is set in the environment of node-0, but WORLD_SIZE" in found.message
    assert found.fix[0].command == "unset RANK LOCAL_RANK"


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"MASTER_ADDR": "head", "MASTER_PORT": "29500"},
        {"WORLD_SIZE": "8", "MASTER_ADDR": "head", "MASTER_PORT": "29500"},
        {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"},
    ],
)
def test_preambles_of_batch_scripts_are_complete_enough(variables: dict[str, str]) -> None:
    assert_passes(find_variables_missing, in_shell(variables))


@pytest.mark.parametrize(
    ("launcher", "source"), [("srun", "SLURM_PROCID"), ("mpirun", "OMPI_COMM_WORLD_RANK")]
)
def test_launchers_with_variables_of_their_own_are_a_note(launcher: str, source: str) -> None:
    found = assert_finds(find_variables_missing, in_shell({}, launcher=launcher), severity="info")
    assert f"{launcher} sets no RANK" in found.message
    assert source in (found.fix[0].command or "")


# ENV002


def test_two_processes_with_one_rank_are_both_named() -> None:
    world = make_world(2, 2)
    twin = replace(world.ranks[3], rank=1)
    found = assert_finds(
        find_rank_duplicated, replace(world, ranks=(*world.ranks[:3], twin)), severity="error"
    )
    assert found.message == "node-0:1001 and node-1:1003 both use rank 1."
    assert found.ranks == RankSet([1])
    assert found.nodes == ("node-0", "node-1")


def test_two_nodes_with_one_node_rank_are_both_named() -> None:
    row = Rendezvous(
        0, "static", "node-0:29500", 3, (0, 1), 6, RankSet.span(4), 1.0, 60.0,
        duplicates=((1, "a:10", "b:20"),), duplicate_kind="node",
    )  # fmt: skip
    world = make_world(3, 2, rendezvous=(row, row), ranks=())
    world = with_launch(replace(world, nodes=world.nodes[:2]), rdzv_backend="static")
    found = assert_finds(find_rank_duplicated, world)
    assert found.message == "a:10 and b:20 both use node rank 1."
    assert found.ranks == RankSet([2, 3])
    assert found.nodes == ("a", "b")
    assert "--node-rank 2" in (found.fix[0].command or "")


def test_same_claim_seen_twice_is_one() -> None:
    world = make_world(2, 2)
    assert_passes(find_rank_duplicated, replace(world, ranks=(*world.ranks, *world.ranks)))


# ENV003


def test_ranks_with_another_world_size_are_named() -> None:
    world = make_world(2, 2)
    odd = tuple(make_rank(rank, 2, 3) for rank in (2, 3))
    found = assert_finds(
        find_world_inconsistent, replace(world, ranks=(*world.ranks[:2], *odd)), severity="error"
    )
    assert found.message == "WORLD_SIZE is '4' on ranks 0-1 and '3' on ranks 2-3; the launch has 4 (2 x 2)."
    assert found.ranks == RankSet([2, 3])
    assert found.nodes == ("node-1",)
    assert found.details["expected"] == "4"


def test_ranks_that_all_have_a_wrong_world_size_are_all_named() -> None:
    world = with_launch(make_world(1, 2), nproc=4, world_size=4)
    assert assert_finds(find_world_inconsistent, world).ranks == RankSet([0, 1])


def started_for(*sizes: int) -> tuple[Rendezvous, ...]:
    return tuple(
        Rendezvous(node, "static", "node-0:29500", size // 2, (), size, RankSet(), 1.0, 60.0)
        for node, size in enumerate(sizes)
    )


def test_nodes_that_were_started_for_other_worlds_are_named() -> None:
    world = make_world(3, 2, rendezvous=started_for(6, 6, 8), ranks=())
    found = assert_finds(find_world_inconsistent, world)
    assert found.message == (
        "The nodes were started with different world sizes: node-0 and node-1 for 6 and node-2 for 8 ranks."
    )
    assert found.nodes == ("node-2",)
    assert found.ranks == RankSet([4, 5])


def test_nodes_with_other_numbers_of_ranks_add_up() -> None:
    world = make_world(2, 2)
    ranks = tuple(
        replace(rank, world_size=5, variables={}, node=int(rank.rank > 1), host=f"node-{int(rank.rank > 1)}")
        for rank in make_world(1, 5).ranks
    )
    found = assert_finds(find_world_inconsistent, replace(world, ranks=ranks), severity="info")
    assert found.message == (
        "The nodes run different numbers of ranks, 2 on node-0 and 3 on node-1; all agree on a world size of 5."
    )


def test_nodes_that_expect_other_sums_only_are_no_contradiction() -> None:
    rows = tuple(replace(row, expected_nodes=2) for row in started_for(4, 6))
    assert_passes(find_world_inconsistent, make_world(2, 2, rendezvous=rows))


def test_one_node_alone_can_know_what_the_others_expect() -> None:
    (row,) = started_for(6)
    told = replace(row, worlds=((0, 6), (1, 6), (2, 8)))
    found = assert_finds(find_world_inconsistent, make_world(3, 2, rendezvous=(told,), ranks=()))
    assert found.nodes == ("node-2",)


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"RANK": "3", "WORLD_SIZE": "2"}, "RANK=3 is not below WORLD_SIZE=2"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 is not below WORLD_SIZE=2"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK=-1 is negative"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0 is not a size"),
        ({"RANK": "one"}, "RANK=one is not a number"),
        ({"LOCAL_RANK": "4", "LOCAL_WORLD_SIZE": "4"}, "LOCAL_RANK=4 is not below LOCAL_WORLD_SIZE=4"),
        ({"LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "4"}, "LOCAL_WORLD_SIZE=8 is above WORLD_SIZE=4"),
    ],
)
def test_variables_that_cannot_be_true_are_an_error(variables: dict[str, str], line: str) -> None:
    found = assert_finds(find_world_inconsistent, in_shell(variables), code="ENV003", severity="error")
    assert line in found.message
    command = found.fix[0].command or ""
    assert command.startswith("unset ")
    assert all(name in command for name in line.split("=")[:1])
    # Said once: the launcher check leaves it to this one.
    assert judge_one(find_launcher_conflict, in_shell(variables))[1] == []


def test_variables_that_nobody_followed_are_judged_without_node_facts() -> None:
    launch = Launch(variables={"RANK": "3", "WORLD_SIZE": "2"})
    found = assert_finds(find_world_inconsistent, Evidence(launch=launch))
    assert "RANK=3 is not below WORLD_SIZE=2" in found.message


@pytest.mark.parametrize(
    "variables", [{}, {"RANK": "1", "WORLD_SIZE": "2"}, {"RANK": ""}, {"WORLD_SIZE": "16384"}]
)
def test_possible_variables_pass(variables: dict[str, str]) -> None:
    assert_passes(find_world_inconsistent, in_shell(variables))


def test_world_sizes_of_ranks_that_never_reported_are_unknown() -> None:
    world = make_world(1, 2, ranks=(), absent={"ranks": Absent("stage rendezvous was cut")})
    assert "stage rendezvous was cut" in assert_status(find_world_inconsistent, world, "unknown")


# ENV004


def test_variable_that_differs_is_a_table_of_values() -> None:
    world = with_rank_variables(4, {"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree"}, {"NCCL_ALGO": "Ring"})
    found = assert_finds(find_variables_differ, world, code="ENV004", severity="warning")
    assert found.message == "NCCL_ALGO is 'Ring' on ranks 0, 2-3 and 'Tree' on rank 1."
    assert found.ranks == RankSet([1])
    assert found.role == "cause"
    assert found.fix[0].command == "export NCCL_ALGO=Ring"
    assert found.details["variables"] == {
        "NCCL_ALGO": [{"value": "Ring", "who": "0,2-3"}, {"value": "Tree", "who": "1"}]
    }


def test_variables_that_differ_alike_are_one_finding() -> None:
    extra = {"NCCL_ALGO": "Tree", "NCCL_PROTO": "Simple", "TORCH_NCCL_BLOCKING_WAIT": "1"}
    world = with_rank_variables(2, {}, {}, extra, nodes=3)
    # ranks 0 and 1 lack them, ranks 2 to 5 have them
    found = assert_finds(find_variables_differ, world)
    assert "not set on ranks 0-1" in found.message
    assert "NCCL_PROTO and TORCH_NCCL_BLOCKING_WAIT differ in the same way." in found.message
    assert found.nodes == ("node-0",)
    assert found.fix[0].command == "export NCCL_ALGO=Tree NCCL_PROTO=Simple TORCH_NCCL_BLOCKING_WAIT=1"


def test_with_two_ranks_nobody_is_blamed() -> None:
    found = assert_finds(
        find_variables_differ, with_rank_variables(2, {"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree"})
    )
    assert found.ranks == RankSet([0, 1])
    assert found.confidence == "medium"
    assert found.fix[0].text == "set one value everywhere"


def test_ports_that_every_rank_chose_itself_are_found() -> None:
    world = with_rank_variables(3, {"MASTER_PORT": "1001"}, {"MASTER_PORT": "1002"}, {"MASTER_PORT": "1003"})
    assert len(assert_finds(find_variables_differ, world).details["variables"]["MASTER_PORT"]) == 3


PER_RANK = ("RANK", "LOCAL_RANK", "ROLE_RANK", "CUDA_VISIBLE_DEVICES", "SLURM_PROCID", "SLURM_LOCALID",
            "OMPI_COMM_WORLD_RANK", "PMI_RANK", "TORCHELASTIC_ERROR_FILE", "NCCL_IB_HCA", "UCX_NET_DEVICES",
            "NCCL_DEBUG_FILE", "NCCL_HOSTID")  # fmt: skip
PER_NODE = (
    "GROUP_RANK",
    "NODE_RANK",
    "SLURM_NODEID",
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
    "LOCAL_WORLD_SIZE",
)


@pytest.mark.parametrize("name", PER_RANK)
def test_what_differs_by_rank_by_nature_is_no_finding(name: str) -> None:
    assert_passes(find_variables_differ, with_rank_variables(3, {name: "0"}, {name: "1"}, {name: "2"}))


@pytest.mark.parametrize("name", PER_NODE)
def test_what_differs_by_node_by_nature_is_no_finding(name: str) -> None:
    assert_passes(
        find_variables_differ, with_rank_variables(2, {name: "a"}, {name: "a"}, {name: "b"}, nodes=2)
    )


def test_interface_that_differs_inside_a_node_is_a_finding() -> None:
    world = with_rank_variables(
        3, {"GLOO_SOCKET_IFNAME": "eth0"}, {"GLOO_SOCKET_IFNAME": "eth1"}, {"GLOO_SOCKET_IFNAME": "eth0"}
    )
    assert assert_finds(find_variables_differ, world).ranks == RankSet([1])


@pytest.mark.parametrize("name", ["HOSTNAME", "HOME", "MY_OWN_TOKEN"])
def test_variables_outside_the_table_do_not_count(name: str) -> None:
    assert_passes(find_variables_differ, with_rank_variables(2, {name: "a"}, {name: "b"}))


@pytest.mark.parametrize("home", ["localhost", "127.0.0.1", "10.0.0.1", "node-0"])
def test_names_of_the_master_on_the_master_itself_agree(home: str) -> None:
    at_home = {"MASTER_ADDR": home}
    world = with_rank_variables(2, at_home, at_home, {"MASTER_ADDR": "node-0"}, nodes=3)
    assert_passes(find_variables_differ, world)


@pytest.mark.parametrize("address", ["localhost", "10.9.9.9"])
def test_another_master_on_another_node_does_not_agree(address: str) -> None:
    right = {"MASTER_ADDR": "node-0"}
    world = with_rank_variables(2, right, right, right, right, {"MASTER_ADDR": address}, nodes=3)
    found = assert_finds(find_variables_differ, world)
    assert found.ranks == RankSet([4, 5])
    assert found.role == "cause"


def test_shells_of_nodes_are_compared_where_no_rank_reported() -> None:
    world = make_world(3, 2, ranks=())
    odd = make_node(1, variables={"NCCL_ALGO": "Tree"})
    found = assert_finds(find_variables_differ, replace(world, nodes=(world.nodes[0], odd, world.nodes[2])))
    assert "'Tree' on node 1" in found.message
    assert found.ranks == RankSet([2, 3])


def test_single_rank_has_nothing_to_agree_with() -> None:
    assert_status(find_variables_differ, make_world(1, 1), "skipped")


def test_equal_environments_pass() -> None:
    assert_passes(find_variables_differ, with_rank_variables(2, {"NCCL_ALGO": "Ring"}, nodes=3))


# ENV005


def with_versions(*versions: dict[str, str]) -> Evidence:
    world = make_world(len(versions), 2, ranks=())
    return replace(world, nodes=tuple(make_node(node, versions=each) for node, each in enumerate(versions)))


def test_versions_that_differ_between_the_nodes_of_a_watched_job_are_told() -> None:
    world = make_world(2, 2)
    ranks = tuple(
        replace(rank, versions={"torch": f"2.1{rank.node}.0", "python": "3.11.7"}) for rank in world.ranks
    )
    launch = replace(world.launch, command="run")
    found = assert_finds(
        find_versions_differ,
        replace(world, launch=launch, nodes=(), ranks=ranks),
        code="ENV005",
        severity="warning",
    )
    assert "torch is 2.10.0 on node-0 and 2.11.0 on node-1" in found.message
    assert "Python" not in found.message


def test_versions_that_one_node_of_a_watched_job_knows_are_not_compared() -> None:
    world = make_world(2, 2)
    own = tuple(replace(rank, versions={"torch": "2.13.0"}) for rank in world.ranks if rank.node == 1)
    seen = replace(world, launch=replace(world.launch, command="run"), nodes=(), ranks=own)
    assert_status(find_versions_differ, seen, "skipped")


def test_versions_that_differ_are_named_by_node() -> None:
    world = with_versions({"torch": "2.13.0"}, {"torch": "2.12.1"}, {"torch": "2.13.0"})
    found = assert_finds(find_versions_differ, world, code="ENV005", severity="warning")
    assert found.message == "torch is 2.13.0 on node-0 and node-2 and 2.12.1 on node-1."
    assert found.nodes == ("node-1",)
    assert found.ranks == RankSet([2, 3])
    assert found.fix[0].command == "pip install torch==2.13.0"


def test_versions_that_differ_alike_are_one_finding() -> None:
    one = {"torch": "2.13.0", "cuda": "12.8", "nccl": "2.27.3"}
    world = with_versions(one, {"torch": "2.12.1", "cuda": "12.6", "nccl": "2.26.2"}, one)
    found = assert_finds(find_versions_differ, world)
    assert "CUDA of torch is 12.8" in found.message
    assert set(found.details["versions"]) == {"torch", "cuda", "nccl"}


@pytest.mark.parametrize(
    ("item", "one", "other"),
    [("python", "3.11.7", "3.11.9"), ("ddpdoctor", "0.1.0", "0.2.0"), ("numpy", "1", "2")],
)
def test_small_differences_are_notes(item: str, one: str, other: str) -> None:
    assert_finds(find_versions_differ, with_versions({item: one}, {item: other}), severity="info")


@pytest.mark.parametrize(
    ("item", "one", "other"),
    [("python", "3.10.9", "3.11.9"), ("driver", "570.1", "550.2"), ("model", "ab12", "cd34")],
)
def test_larger_differences_are_warnings(item: str, one: str, other: str) -> None:
    assert_finds(find_versions_differ, with_versions({item: one}, {item: other}), severity="warning")


def test_item_that_a_node_does_not_have_is_left_out() -> None:
    assert_passes(find_versions_differ, with_versions({"torch": "2", "driver": "570"}, {"torch": "2"}))


def test_ranks_with_another_torch_on_one_node_are_found() -> None:
    world = make_world(1, 2)
    odd = replace(world.ranks[1], versions={"torch": "2.12.1"})
    found = assert_finds(find_versions_differ, replace(world, ranks=(world.ranks[0], odd)))
    assert "2.13.0 and 2.12.1" in found.message


def test_single_node_has_nothing_to_differ_from() -> None:
    assert_status(find_versions_differ, make_world(), "skipped")


def test_versions_of_one_node_of_several_are_unknown() -> None:
    world = make_world(2, 2, ranks=())
    assert_status(find_versions_differ, replace(world, nodes=world.nodes[:1]), "unknown")
