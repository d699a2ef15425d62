from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.layout import Layout, join_layouts, make_layout
from ddpdoctor.facts import strategies

FOUR = RankSet.span(4)


def groups(*texts: str) -> list[RankSet]:
    return [RankSet.parse(text) for text in texts]


def seen(how: str, name: str, *sets: list[int]) -> list[tuple[str, str, list[int]]]:
    return [(how, name, ranks) for ranks in sets]


def test_data_and_tensor_parallel_ranks_of_a_mesh() -> None:
    layout = make_layout(
        [*seen("fully_shard", "dp", [0, 2], [1, 3]), *seen("parallelize_module", "tp", [0, 1], [2, 3])]
    )
    assert layout.list_groups(strategies.DATA) == groups("0,2", "1,3")
    assert layout.list_groups(strategies.TENSOR) == groups("0-1", "2-3")
    assert layout.is_known(FOUR)


def test_both_dimensions_of_a_hybrid_mesh_are_data() -> None:
    layout = make_layout(
        [
            *seen("fully_shard", "replicate", [0, 2], [1, 3]),
            *seen("fully_shard", "shard", [0, 1], [2, 3]),
        ]
    )
    assert layout.list_groups(strategies.DATA) == [FOUR]


def test_groups_of_unknown_purpose_are_not_judged() -> None:
    layout = make_layout(seen("group", "", [0, 1], [2, 3]))
    assert [axis.role for axis in layout.axes] == [strategies.UNKNOWN]
    assert not layout.is_known(FOUR)


def test_a_group_says_nothing_more_where_a_strategy_uses_its_ranks() -> None:
    layout = make_layout([*seen("fully_shard", "dp", [0, 2]), *seen("group", "", [0, 2])])
    assert [axis.strategy for axis in layout.axes] == ["fully_shard"]


def test_a_group_is_what_the_name_of_its_dimension_says() -> None:
    layout = make_layout([*seen("group", "pp", [0, 1]), *seen("group", "dp_replicate", [0, 2])])
    assert {axis.name: axis.role for axis in layout.axes} == {
        "pp": strategies.PIPELINE,
        "dp_replicate": strategies.DATA,
    }


def test_experts_are_no_tensor_parallel_layer() -> None:
    layout = make_layout(seen("parallelize_module", "ep", [0, 1]))
    assert [axis.role for axis in layout.axes] == [strategies.EXPERT]


def test_nodes_are_joined() -> None:
    first = make_layout(seen("fully_shard", "dp", [0, 2]))
    second = make_layout(seen("fully_shard", "dp", [1, 3]))
    assert join_layouts([first, Layout(), second]).list_groups(strategies.DATA) == groups("0,2", "1,3")


def test_stages_of_a_pipeline_are_not_connected() -> None:
    layout = make_layout(
        [*seen("parallelize_module", "tp", [0, 1], [2, 3]), *seen("group", "pp", [0, 2], [1, 3])]
    )
    assert layout.part(RankSet([0, 2])) == groups("0", "2")
    assert layout.part(RankSet([0, 1])) == groups("0-1")


def test_replicas_of_a_piece_are_connected_by_their_data_dimension() -> None:
    layout = make_layout(
        [*seen("parallelize_module", "tp", [0, 1], [2, 3]), *seen("fully_shard", "dp", [0, 2], [1, 3])]
    )
    assert layout.part(RankSet([0, 2])) == groups("0,2")
