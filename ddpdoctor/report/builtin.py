"""The built-in renderers. Registering them imports neither jinja2 nor rich; rendering does."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from ddpdoctor.report.model import Report
from ddpdoctor.report.registry import Renderer, RendererRegistry, RenderOptions


@dataclass(slots=True)
class LazyRenderer:
    """A renderer whose module is imported when it is first used."""

    name: str
    description: str
    target: str
    """``module:Class``; the class takes no arguments."""

    def load(self) -> Renderer:
        """Import the module and return the renderer."""
        module, _, attribute = self.target.partition(":")
        renderer: Renderer = getattr(importlib.import_module(module), attribute)()
        return renderer

    def render(self, report: Report, options: RenderOptions) -> str:
        """Return what the real renderer makes of the report."""
        return self.load().render(report, options)


BUILTIN = (
    ("text", "human-readable text for the terminal", "ddpdoctor.report.terminal:TextRenderer"),
    ("json", "the whole report as JSON (schema 1.1)", "ddpdoctor.report.json_renderer:JsonRenderer"),
    ("html", "self-contained HTML, works offline", "ddpdoctor.report.html.renderer:HtmlRenderer"),
    ("junit", "checks as test cases, for GitLab and Jenkins", "ddpdoctor.report.junit:JunitRenderer"),
    (
        "sarif",
        ("findings with source locations for code scanning (SARIF 2.1.0)"),
        "ddpdoctor.report.sarif:SarifRenderer",
    ),
    ("github", "annotations of a GitHub workflow", "ddpdoctor.report.github:GithubRenderer"),
    ("markdown", "Markdown for an issue or a step summary", "ddpdoctor.report.markdown:MarkdownRenderer"),
    (
        "prometheus",
        "gauges for a Prometheus textfile collector",
        "ddpdoctor.report.prometheus:PrometheusRenderer",
    ),
)
"""Name, description and target of each built-in format."""


def register(registry: RendererRegistry) -> None:
    """Add the built-in formats."""
    for name, description, target in BUILTIN:
        registry.add(LazyRenderer(name, description, target))
