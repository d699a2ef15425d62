"""Markdown for a terminal, by rich: imported only where there is a terminal with colors."""

from __future__ import annotations

import io
from collections.abc import Mapping

from ddpdoctor.cli.output.display import Display


def render_markdown(sections: Mapping[str, str], display: Display) -> str:
    """Return the sections of a page with styles: headings bold, code highlighted, prose filled to the width."""
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.padding import Padding
    from rich.text import Text

    stream = io.StringIO()
    console = Console(
        file=stream,
        width=display.width,
        force_terminal=True,
        color_system="standard",
        legacy_windows=False,
        safe_box=True,
    )
    for heading, text in sections.items():
        console.print()
        if heading:
            console.print(Text(heading, style="bold"))
        body = Markdown(text, code_theme="ansi_dark", inline_code_theme="ansi_dark", hyperlinks=False)
        console.print(Padding(body, (0, 0, 0, 2 if heading else 0)))
    console.print()
    return stream.getvalue()
