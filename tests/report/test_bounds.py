"""Formats for other programs stay small and quick, whatever a report holds."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from ddpdoctor.evidence import RankSet
from ddpdoctor.gather.scrub import scrub
from ddpdoctor.report import RendererRegistry, RenderOptions, Report
from ddpdoctor.report.builtin import register
from tests.report.extremes import sample_large

FORMATS = {
    "junit": 8_000_000,
    "sarif": 12_000_000,
    "github": 300_000,
    "markdown": 62_000,
    "prometheus": 400_000,
}
"""Characters that each may take for 1,000 findings on 16,384 ranks whose texts have no end."""
LIMIT_S = 20.0
"""They take 0.1 to 2 s where nothing else runs."""


@pytest.fixture(scope="module")
def immense() -> Report:
    report = sample_large()
    (finding,) = report.findings
    log = "a `line` of a_log\n" * 2000
    long = tuple(replace(item, text=log) for item in finding.evidence[:10])
    everyone = RankSet.span(report.world.size)
    odd = replace(
        finding, code="ERR001", severity="error", ranks=everyone, evidence=(*long, *finding.evidence[10:])
    )
    return replace(
        report, findings=tuple(replace(odd, message=f"{n} " + "x * y_ " * 3000) for n in range(1000))
    )


@pytest.mark.unmeasured
@pytest.mark.parametrize("name", FORMATS)
def test_thousand_findings_on_sixteen_thousand_ranks(immense: Report, name: str) -> None:
    registry = RendererRegistry()
    register(registry)
    renderer = registry.find(name)
    assert renderer is not None
    began = time.process_time()  # other work on the machine does not count
    text = renderer.render(immense, RenderOptions(scrub=scrub))
    assert time.process_time() - began < LIMIT_S
    assert 1000 < len(text) < FORMATS[name]
