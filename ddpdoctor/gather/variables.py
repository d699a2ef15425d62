"""Reading the allow-listed environment variables."""

from __future__ import annotations

from collections.abc import Mapping

from ddpdoctor.evidence.variables import find_rule
from ddpdoctor.gather.scrub import scrub

MAX_VALUE = 1000
"""Characters kept of one value: room for a node list or a search path, too little to bloat 16,384 ranks."""


def allowed_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``environ`` that may be kept, by name, with scrubbed values."""
    return {name: _shorten(scrub(environ[name])) for name in sorted(environ) if find_rule(name) is not None}


def _shorten(value: str) -> str:
    return value if len(value) <= MAX_VALUE else value[: MAX_VALUE - 1] + "…"
