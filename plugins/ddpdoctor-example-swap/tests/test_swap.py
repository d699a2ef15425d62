"""What every plugin wants to test: that it is found, what it gathers, what it finds, and what it shows."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from ddpdoctor.evidence import Evidence
from ddpdoctor.plugins import load_plugins
from ddpdoctor.report import RenderOptions
from ddpdoctor.testing import (
    assert_finds,
    assert_page,
    assert_passes,
    assert_status,
    gather,
    make_node,
    make_report,
    make_world,
)
from ddpdoctor_example_swap import checks, gatherers, renderers

GIB = 1 << 30


def world(used: int, total: int = 8 * GIB) -> Evidence:
    here = {"host": "node-0", "total": total, "used": 0}
    seen = {"0": here, "1": {**here, "host": "node-1", "used": used}}
    return make_world(nodes=2, nproc=4, extra={checks.KEY: seen})


def test_plugin_is_found_by_its_entry_points() -> None:
    plugins = load_plugins()
    assert "x.swap.unused" in {each.id for each in plugins.checks.checks}
    assert checks.KEY in {each.key for each in plugins.gatherers.gatherers}
    assert "csv" in plugins.renderers.names
    assert not [problem for problem in plugins.problems if problem.distribution == "ddpdoctor-example-swap"]


def test_swap_is_read_in_bytes(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("SwapTotal:     2048 kB\nSwapFree:     1024 kB\nHugePages_Total: 0\n")
    seen = gatherers.read_swap(make_node(3), path=meminfo)
    assert seen == {"host": "node-3", "total": 2 << 20, "used": 1 << 20}


def test_gatherer_runs_here_and_lands_where_the_check_looks() -> None:
    extra = gather(gatherers.register, source="ddpdoctor-example-swap")
    assert set(extra[checks.KEY]["0"]) == {"host", "total", "used"}


def test_node_that_swaps_is_named_with_its_ranks() -> None:
    finding = assert_finds(checks.find_swapping, world(2 * GIB), severity="warning")
    assert finding.message == "node-1 has 2.0 GiB of memory swapped to disk."
    assert (finding.nodes, str(finding.ranks)) == (("node-1",), "4-7")


def test_a_little_swap_is_fine() -> None:
    assert_passes(checks.find_swapping, world(checks.MUCH))


def test_no_swap_and_nobody_looked_are_not_shown_as_fine() -> None:
    assert assert_status(checks.find_swapping, world(0, total=0), "skipped") == "no node has swap"
    assert "saw no node" in assert_status(checks.find_swapping, make_world(), "unknown")


def test_page_is_complete() -> None:
    assert_page(checks.find_swapping)


@pytest.mark.parametrize("measured", [True, False])
def test_csv_has_a_line_for_each_row(measured: bool) -> None:
    evidence = make_world() if measured else make_world(bandwidth=())
    text = renderers.CsvRenderer().render(make_report(evidence), RenderOptions())
    rows = list(csv.DictReader(io.StringIO(text)))
    assert text.startswith("op,backend,dtype,bytes,")
    assert [int(row["bytes"]) for row in rows] == [row.bytes for row in evidence.bandwidth]
