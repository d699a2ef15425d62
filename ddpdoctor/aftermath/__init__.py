"""Evidence out of what a job left behind: logs, error files, trees of logs."""

from ddpdoctor.aftermath.given_files import Source, Sources
from ddpdoctor.aftermath.joining.join import join_logs
from ddpdoctor.aftermath.read import read_sources

__all__ = ["Source", "Sources", "join_logs", "read_sources"]
