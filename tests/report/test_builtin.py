from __future__ import annotations

import subprocess
import sys

from ddpdoctor.report import RendererRegistry, RenderOptions
from ddpdoctor.report.builtin import register
from tests.report.samples import sample_healthy

LIGHT = """
import sys
from ddpdoctor.report import RendererRegistry
from ddpdoctor.report.builtin import register
registry = RendererRegistry()
register(registry)
names = "text json html junit sarif github markdown prometheus"
assert registry.names == tuple(names.split()), registry.names
assert all(registry.find(name).description for name in registry.names)
heavy = {"jinja2", "markupsafe", "rich", "torch", "json"} & set(sys.modules)
print(sorted(heavy - {"json"}))
"""


def test_registering_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIGHT], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_registered_formats_render() -> None:
    registry = RendererRegistry()
    register(registry)
    starts = {
        "json": "{",
        "html": "<!doctype html>",
        "junit": "<?xml",
        "sarif": "{",
        "github": "::",
        "markdown": "## ",
    }
    for name in registry.names:
        renderer = registry.find(name)
        assert renderer is not None
        text = renderer.render(sample_healthy(), RenderOptions())
        assert text.startswith(starts.get(name, ""))
        assert text.endswith("\n")
