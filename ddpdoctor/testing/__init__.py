"""A harness for those who write checks: make evidence, run one check on it, say what is expected.

The built-in checks are tested with it too. It needs neither torch nor pytest::

    from ddpdoctor.testing import assert_finds, assert_passes, make_world

    def test_full_disk_is_found() -> None:
        world = make_world(nodes=2, nproc=4, extra={"my-dist/disk": {"1": {"free": 0}}})
        finding = assert_finds(check_disk, world, code="X-my-dist-001")
        assert finding.nodes == ("node-1",)

A world as `make_world` gives it is healthy: no built-in check finds anything in it.
"""

from ddpdoctor.testing.asserts import (
    STARTED,
    assert_finds,
    assert_page,
    assert_passes,
    assert_status,
    collect_checks,
    gather,
    judge_one,
    make_report,
    read_source,
)
from ddpdoctor.testing.worlds import ALL_LINKS, OPERATIONS, SIZES, make_node, make_rank, make_world

__all__ = [
    "ALL_LINKS",
    "OPERATIONS",
    "SIZES",
    "STARTED",
    "assert_finds",
    "assert_page",
    "assert_passes",
    "assert_status",
    "collect_checks",
    "gather",
    "judge_one",
    "make_node",
    "make_rank",
    "make_report",
    "make_world",
    "read_source",
]
