"""Format ``html``: one file, no request to anywhere, complete without JavaScript."""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from ddpdoctor.report.html.checks import STATUS_WORDS, describe_counts
from ddpdoctor.report.html.view import build_view
from ddpdoctor.report.model import Report
from ddpdoctor.report.registry import RenderOptions
from ddpdoctor.report.words import clean, count


class HtmlRenderer:
    """Format ``html``."""

    name = "html"
    description = "self-contained HTML, works offline"

    def render(self, report: Report, options: RenderOptions) -> str:
        """Return the page, ending in a newline. It can always be encoded as UTF-8."""
        style, script = _load("report.css"), _load("report.js")
        text = (
            _environment()
            .get_template("report.html.jinja")
            .render(
                page=build_view(report, options),
                # both are files of this package, so they are markup by origin
                style=Markup(style),
                script=Markup(script),
                policy=content_policy(style, script),
            )
        )
        return text if text.endswith("\n") else text + "\n"


def content_policy(style: str, script: str) -> str:
    """Return a content security policy that allows this style sheet and this script, and nothing else.

    https://www.w3.org/TR/CSP3/ sections 2.3 (hashes of inline elements) and 6.1 (directives).
    """
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src '{_hash(style)}'",
            f"script-src '{_hash(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@functools.cache
def _load(name: str) -> str:
    # the hash is over what stands between the tags, so line ends must not change on the way
    return resources.files(__package__).joinpath(name).read_bytes().decode().replace("\r\n", "\n")


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ddpdoctor.report.html", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters["counts"] = describe_counts
    environment.globals.update(count=count, status_words=STATUS_WORDS)
    return environment


def _finalize(value: Any) -> Any:
    """Make what is invisible in a user's text visible; markup of ours passes."""
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value
