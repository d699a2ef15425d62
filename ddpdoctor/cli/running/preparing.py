"""What `run` needs to judge and to show, loaded while the job starts."""

from __future__ import annotations

import argparse
import importlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddpdoctor.cli.arguments import options as common

if TYPE_CHECKING:
    from ddpdoctor.judge.selection import Selection
    from ddpdoctor.plugins import Plugins

REPORTING = (
    "ddpdoctor.cli.outputs",
    "ddpdoctor.gather.scrub",
    "ddpdoctor.report.build",
    "ddpdoctor.report.cleaning",
    "ddpdoctor.report.html.renderer",
    "ddpdoctor.report.json_renderer",
    "ddpdoctor.report.terminal",
    "ddpdoctor.watch.launch.evidence",
)
"""What `run` imports after the job."""


@dataclass(frozen=True)
class Tools:
    """What judging and showing need."""

    plugins: Plugins
    selection: Selection
    outputs: tuple[common.Output, ...]


class Preparation:
    """Loads what judging and showing need while the job starts: neither its start nor its end waits for our imports.

    Raises:
        UsageError: the options name a code or a format that nobody has, or outputs that clash. Where they name any, all
            is loaded at once: that has to be said before anything is launched.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._tools: Tools | None = None
        self._thread: threading.Thread | None = None
        if any(getattr(options, name, None) for name in ("select", "ignore", "formats", "outputs")):
            self._tools = self._load()

    def start(self) -> None:
        """Begin, beside the job."""
        thread = threading.Thread(target=self._load_quietly, name="ddpdoctor-preparation", daemon=True)
        thread.start()
        self._thread = thread  # one that could not start is not waited for

    def finish(self) -> Tools:
        """Return what was loaded; what failed beside the job is tried again, so that its error is raised here."""
        if self._thread is not None:
            self._thread.join()
        return self._tools or self._load()

    def _load_quietly(self) -> None:
        try:
            self._tools = self._tools or self._load()
            _import_reporting()
        except Exception:
            return  # `finish` meets it again, when the job has ended

    def _load(self) -> Tools:
        from ddpdoctor.cli.arguments.select import choose_selection
        from ddpdoctor.plugins import load_plugins

        plugins = load_plugins()
        names = {code: page.name for code, page in plugins.checks.pages.items()}
        selection = choose_selection(self._options, names)
        return Tools(plugins, selection, common.pair_outputs(self._options, plugins.renderers.names))


def _import_reporting() -> None:
    for name in REPORTING:
        importlib.import_module(name)
