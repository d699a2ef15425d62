"""Builds the JSON Schema: the envelope written here by hand, the evidence from its dataclasses.

``python -m ddpdoctor.report.schema.build`` writes the file; a test fails when it and the dataclasses part.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import textwrap
import types
import typing
from pathlib import Path
from typing import Any

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.columns import Numbers
from ddpdoctor.judge.finding import CONFIDENCES, ROLES, SEVERITIES, STATES, SUPPRESSORS
from ddpdoctor.report.model import MEASURED, SCHEMA
from ddpdoctor.report.schema import SCHEMA_FILE

Json = dict[str, Any]

TEXT: Json = {"type": "string"}
MAYBE_TEXT: Json = {"type": ["string", "null"]}
COUNT: Json = {"type": "integer", "minimum": 0}
SECONDS: Json = {"type": ["number", "null"], "description": "Seconds."}
RANKS: Json = {"type": "array", "items": COUNT, "uniqueItems": True, "description": "Ranks as integers."}
RANK_TEXT: Json = {
    "type": "string",
    "pattern": r"^(\d+(-\d+)?(,\d+(-\d+)?)*)?$",
    "description": "Ranks as closed ranges, e.g. 0-2,4.",
}
NUMBERS: Json = {
    "type": "array",
    "items": {"type": "integer"},
    "description": "A column of integers: the first, then by how much each is larger than the one before.",
}
_PLAIN: dict[Any, tuple[str, ...]] = {
    str: ("string",),
    bool: ("boolean",),
    int: ("integer",),
    float: ("number", "string", "null"),
}
"""A float may be null (could not be told) or one of the texts of `NO_NUMBER`."""
NO_NUMBER = "^(nan|-?inf)$"
"""How `ddpdoctor.evidence.codec` writes what JSON has no number for."""


def build_schema() -> Json:
    """Return the whole schema (draft 2020-12)."""
    definitions: Json = {}
    evidence = _describe_class(Evidence, definitions)
    kinds = evidence.pop("properties")
    measured = {kind: kinds.pop(kind) for kind in MEASURED}
    definitions.update(_envelope_definitions())
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ddpdoctor report 1.1",
        "description": (
            "Everything that one command of ddpdoctor found out. Absent = does not apply; null = could not "
            "be determined. Readers ignore keys that they do not know."
        ),
        **_object(_top_level(kinds, measured), optional=("job", "interrupted", "remarks")),
        "$defs": dict(sorted(definitions.items())),
    }


def _object(properties: Json, optional: tuple[str, ...] = ()) -> Json:
    return {
        "type": "object",
        "required": [name for name in properties if name not in optional],
        "properties": properties,
    }


def _ref(name: str) -> Json:
    return {"$ref": f"#/$defs/{name}"}


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


def _top_level(kinds: Json, measured: Json) -> Json:
    timings = {
        "type": "object",
        "additionalProperties": SECONDS,
        "description": "Seconds per stage and phase.",
    }
    return {
        "schema": {"const": SCHEMA},
        "schema_version": {"type": "string", "pattern": r"^1\.\d+$"},
        "tool": _object({"name": TEXT, "version": TEXT}),
        "command": TEXT,
        "invocation": _list(TEXT),
        "started_at": {
            "type": "string",
            "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$",
            "description": "RFC 3339, UTC, microseconds.",
        },
        "duration_s": SECONDS,
        "verdict": _ref("verdict"),
        "world": _ref("world"),
        "job": _object(
            {
                "exit_code": {"type": ["integer", "null"]},
                "signal": {"type": ["integer", "null"]},
                "stopped_by": MAYBE_TEXT,
            }
        ),
        "interrupted": {"type": "string", "description": "Signal that ended the command early."},
        "remarks": _list(_ref("remark")),
        "checks": _list(_ref("check")),
        "findings": {
            **_list(_ref("finding")),
            "description": "The first active error or warning is the root cause.",
        },
        "measurements": {
            "type": "object",
            "required": ["timings"],
            "properties": {**measured, "timings": timings},
        },
        "evidence": {"type": "object", "required": ["launch"], "properties": kinds},
    }


def _envelope_definitions() -> Json:
    place = {
        "ranks": RANKS,
        "role": {"enum": ["culprit", "victim", "condition", "caller", "noticed"]},
        "file": {
            "type": "string",
            "description": "Relative to the working directory where it lies below it.",
        },
        "line": COUNT,
        "column": COUNT,
        "end_line": COUNT,
        "cell": {"type": ["integer", "string"]},
        "indent": COUNT,
        "function": TEXT,
        "source": TEXT,
        "host": TEXT,
    }
    item = {
        "kind": TEXT,
        "text": TEXT,
        "ranks": RANKS,
        "source": _object({"file": TEXT, "line": {"type": ["integer", "null"]}}, optional=("line",)),
    }
    return {
        "verdict": _object(
            {
                "status": {"enum": ["problems", "healthy", "unknown", "error"]},
                "headline": TEXT,
                "code": MAYBE_TEXT,
                "looked": {**COUNT, "description": "Checks that passed or failed."},
                "of": {**COUNT, "description": "All checks."},
            }
        ),
        "world": _object(
            {
                "size": COUNT,
                "nodes": _list(_ref("node")),
                "backend": MAYBE_TEXT,
                "torch": MAYBE_TEXT,
                "python": MAYBE_TEXT,
                "launcher": MAYBE_TEXT,
            }
        ),
        "node": _object({"host": TEXT, "ranks": RANKS, "devices": _list(TEXT)}),
        "check": _check_definition(),
        "finding": _finding_definition(),
        "place": _object(
            place, optional=("column", "end_line", "cell", "indent", "function", "source", "host")
        ),
        "evidence_item": _object(item, optional=("ranks", "source")),
        "fix": _object({"text": TEXT, "command": TEXT, "code": TEXT}, optional=("command", "code")),
        "remark": {
            **_object({"text": TEXT, "file": TEXT, "line": COUNT, "cell": COUNT}, optional=("line", "cell")),
            "description": "On a comment, a setting or a baseline that does not hide what it says.",
        },
    }


def _check_definition() -> Json:
    described = _object(
        {
            "id": TEXT,
            "codes": {**_list(TEXT), "description": "Codes that it can find."},
            "family": TEXT,
            "status": {"enum": ["pass", "fail", "skipped", "unknown", "error"]},
            "reason": MAYBE_TEXT,
            "duration_s": SECONDS,
            "source": {"type": "string", "description": "Distribution that it comes from."},
            "required": {"type": "boolean", "description": "Without it nothing is called healthy."},
        },
        optional=("required",),
    )
    described["if"] = {"properties": {"status": {"const": "pass"}}}
    described["else"] = {"properties": {"reason": {"type": "string", "minLength": 1}}}
    return described


def _finding_definition() -> Json:
    return _object(
        {
            "code": {"type": "string", "minLength": 1},
            "name": TEXT,
            "severity": {"enum": list(SEVERITIES)},
            "confidence": {"enum": list(CONFIDENCES)},
            "role": {"enum": list(ROLES)},
            "state": {"enum": list(STATES)},
            "message": {"type": "string", "minLength": 1},
            "ranks": {**RANKS, "description": "Root-cause ranks, never affected ones."},
            "victims": RANKS,
            "nodes": _list(TEXT),
            "pairs": _list({"type": "array", "items": TEXT, "minItems": 2, "maxItems": 2}),
            "where": _list(_ref("place")),
            "evidence": _list(_ref("evidence_item")),
            "fix": _list(_ref("fix")),
            "details": {"type": "object", "description": "Per code."},
            "decisive": {"type": "boolean", "description": "It is what ended the job."},
            "suppression": {
                **_object(
                    {"by": {"enum": list(SUPPRESSORS)}, "reason": TEXT, "line": COUNT},
                    optional=("reason", "line"),
                ),
                "description": "Who said that a suppressed finding is not to count.",
            },
        },
        optional=("decisive", "suppression"),
    )


def _describe_class(kind: type, definitions: Json) -> Json:
    """Return the schema of a dataclass; classes that it holds go to ``definitions``."""
    hints = typing.get_type_hints(kind)
    words = _attribute_docstrings(kind)
    properties: Json = {}
    required = []
    for field in dataclasses.fields(kind):
        described = _describe_hint(hints[field.name], definitions)
        properties[field.name] = (
            {**described, "description": words[field.name]} if field.name in words else described
        )
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            required.append(field.name)
    schema: Json = {"type": "object", "description": inspect.cleandoc(kind.__doc__ or "")}
    return {**schema, **({"required": required} if required else {}), "properties": properties}


def _describe_hint(hint: Any, definitions: Json) -> Json:
    """Return the schema of a type as `ddpdoctor.evidence.codec` writes it."""
    if hint is Any:
        return {}
    if hint is RankSet:
        return dict(RANK_TEXT)
    if hint is Numbers:
        return dict(NUMBERS)
    if hint in _PLAIN:
        return _describe_plain((hint,))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        name = f"evidence.{hint.__name__}"
        words = inspect.cleandoc(hint.__doc__ or "")
        if definitions.setdefault(name, {}).get("description", words) != words:
            raise TypeError(f"two classes of evidence are called {hint.__name__}")
        if not definitions[name]:
            definitions[name] = {"description": words}  # so that a class that holds itself ends
            definitions[name] = _describe_class(hint, definitions)
        return _ref(name)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _describe_union(args, definitions)
    if origin is dict:
        return {"type": "object", "additionalProperties": _describe_hint(args[1], definitions)}
    if origin in (tuple, list):
        if origin is tuple and Ellipsis not in args:
            inner = [_describe_hint(arg, definitions) for arg in args]
            return {"type": "array", "prefixItems": inner, "minItems": len(args), "maxItems": len(args)}
        return _list(_describe_hint(args[0], definitions))
    raise TypeError(f"no schema for {hint!r}")


def _describe_plain(args: tuple[Any, ...]) -> Json:
    """Return the schema of plain types of which any may stand there; None is the only other one."""
    named = list(dict.fromkeys(name for arg in args for name in _PLAIN.get(arg, ("null",))))
    described: Json = {"type": named[0] if len(named) == 1 else named}
    return {**described, "pattern": NO_NUMBER} if float in args and str not in args else described


def _describe_union(args: tuple[Any, ...], definitions: Json) -> Json:
    if all(arg in _PLAIN or arg is type(None) for arg in args):
        return _describe_plain(args)
    parts = [_describe_hint(arg, definitions) for arg in args if arg is not type(None)]
    return {"anyOf": [*parts, {"type": "null"}]} if type(None) in args else {"anyOf": parts}


def _attribute_docstrings(kind: type) -> dict[str, str]:
    """Return field -> the string that stands below it in the source."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(following, ast.Expr):
            continue
        value = following.value
        if (
            isinstance(statement.target, ast.Name)
            and isinstance(value, ast.Constant)
            and isinstance(value.value, str)
        ):
            found[statement.target.id] = " ".join(value.value.split())
    return found


def main() -> None:
    """Write the schema file beside this module."""
    text = json.dumps(build_schema(), indent=2, ensure_ascii=False) + "\n"
    Path(__file__).with_name(SCHEMA_FILE).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
