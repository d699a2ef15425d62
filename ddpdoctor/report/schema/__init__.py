"""The JSON Schema of the report, shipped with the package."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

SCHEMA_FILE = "report-1.1.schema.json"


def load_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of ``schema_version`` 1.1."""
    schema: dict[str, Any] = json.loads(resources.files(__package__).joinpath(SCHEMA_FILE).read_text("utf-8"))
    return schema
