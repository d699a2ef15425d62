"""TensorBoard: an event file beside those of the training."""

from __future__ import annotations

from pathlib import Path

import ddpdoctor
from ddpdoctor_export.reading import began, count_severities, list_lags


def write(report: ddpdoctor.Report, folder: str) -> None:
    """Write a report into a directory of TensorBoard, as the run ``ddpdoctor``.

    Args:
        report: what to show.
        folder: the log directory.
    """
    from torch.utils.tensorboard import SummaryWriter

    at = began(report) + report.duration_s
    with SummaryWriter(str(Path(folder) / "ddpdoctor")) as writer:
        writer.add_text("ddpdoctor/verdict", ddpdoctor.render(report, "markdown"), 0, walltime=at)
        for severity, count in count_severities(report).items():
            writer.add_scalar(f"ddpdoctor/findings/{severity}", count, 0, walltime=at)
        for each in list_lags(report):
            writer.add_scalar(
                f"ddpdoctor/lag_s/rank_{each.rank}", each.seconds, each.step, walltime=each.at_s
            )
