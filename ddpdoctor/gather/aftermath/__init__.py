"""Evidence out of what a job left behind: logs, error files, trees of logs."""

from ddpdoctor.gather.aftermath.join import join_logs
from ddpdoctor.gather.aftermath.read import read_sources
from ddpdoctor.gather.aftermath.sources import Source, Sources

__all__ = ["Source", "Sources", "join_logs", "read_sources"]
