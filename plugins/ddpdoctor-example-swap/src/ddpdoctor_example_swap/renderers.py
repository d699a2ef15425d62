"""The bandwidth rows of a report as CSV."""

from __future__ import annotations

import csv
import dataclasses
import io

from ddpdoctor.evidence import BandwidthRow
from ddpdoctor.report import RendererRegistry, RenderOptions, Report


class CsvRenderer:
    """Format ``csv``: one line a row, with the names of the fields above."""

    name = "csv"
    description = "bandwidth rows, for a spreadsheet"

    def render(self, report: Report, options: RenderOptions) -> str:
        """Return the table; only its head when no bandwidth was measured."""
        names = [field.name for field in dataclasses.fields(BandwidthRow)]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([getattr(row, name) for name in names] for row in report.evidence.bandwidth)
        return text.getvalue()


def register(registry: RendererRegistry) -> None:
    """Add the format."""
    registry.add(CsvRenderer())
