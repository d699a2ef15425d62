"""What a SARIF log of ours may hold, for the tests.

Written from the specification, SARIF 2.1.0 errata 01 (OASIS), section 3: the objects that ddpdoctor writes, closed, so that
whatever else appears is an error. The committee's own schema is in no package of PyPI; where the variable SARIF_SCHEMA
names a copy of it, every log is validated against that as well.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema

STRING = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}
POSITIVE = {"type": "integer", "minimum": 1}
TIME = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$"}


def one(required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": required.split(),
        "properties": properties,
        "additionalProperties": False,
    }


def many(item: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": item, **more}


def of(name: str) -> dict[str, Any]:
    return {"$ref": f"#/definitions/{name}"}


LEVEL = {"enum": ["none", "note", "warning", "error"]}
DEFINITIONS = {
    "bag": {"type": "object", "properties": {"tags": many(STRING, uniqueItems=True)}},
    "message": one("text", text=STRING, markdown=STRING, arguments=many(STRING)),  # 3.11
    "texts": one("text", text=STRING, markdown=STRING),  # 3.12
    "artifactLocation": one("uri", uri=STRING, uriBaseId=STRING, description=of("message")),  # 3.4
    "region": one(
        "startLine", startLine=POSITIVE, startColumn=POSITIVE, snippet=one("text", text=STRING)
    ),  # 3.30
    "physical": one(
        "artifactLocation region", artifactLocation=of("artifactLocation"), region=of("region")
    ),  # 3.29
    "logical": one("name", name=STRING, kind=STRING),  # 3.33
    "location": one(  # 3.28
        "physicalLocation",
        id=COUNT,
        physicalLocation=of("physical"),
        message=of("message"),
        logicalLocations=many(of("logical"), uniqueItems=True),
    ),
    "threadFlow": one(  # 3.37
        "locations",
        id=STRING,
        locations=many(
            one(  # 3.38
                "location",
                location=of("location"),
                importance={"enum": ["important", "essential", "unimportant"]},
            ),
            minItems=1,
        ),
    ),
    "result": one(  # 3.27
        "ruleId message locations partialFingerprints",
        ruleId=STRING,
        ruleIndex=COUNT,
        level=LEVEL,
        message=of("message"),
        locations=many(of("location"), minItems=1, maxItems=1),
        relatedLocations=many(of("location"), uniqueItems=True),
        codeFlows=many(one("threadFlows", threadFlows=many(of("threadFlow"), minItems=1))),
        partialFingerprints={"type": "object", "additionalProperties": STRING, "minProperties": 1},
        properties=of("bag"),
    ),
    "rule": one(  # 3.49; the texts are what GitHub wants
        "id name shortDescription fullDescription help",
        id={"type": "string", "minLength": 1},
        name={"type": "string", "minLength": 1},
        shortDescription=of("texts"),
        fullDescription=of("texts"),
        help=of("texts"),
        defaultConfiguration=one("level", level=LEVEL),
        properties=of("bag"),
    ),
    "notification": one(  # 3.58
        "message", message=of("message"), level=LEVEL, locations=many(of("location"))
    ),
    "invocation": one(  # 3.20
        "executionSuccessful",
        executionSuccessful={"type": "boolean"},
        commandLine=STRING,
        arguments=many(STRING),
        startTimeUtc=TIME,
        endTimeUtc=TIME,
        toolExecutionNotifications=many(of("notification")),
        toolConfigurationNotifications=many(of("notification")),
        properties=of("bag"),
    ),
    "driver": one(  # 3.19
        "name", name=STRING, version=STRING, rules=many(of("rule"), uniqueItems=True)
    ),
    "run": one(  # 3.14
        "tool results",
        tool=one("driver", driver=of("driver")),
        automationDetails=one("id", id=STRING),
        columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
        invocations=many(of("invocation")),
        results=many(of("result")),
    ),
}
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "definitions": DEFINITIONS,
    **one(  # 3.13
        "version runs",
        **{"$schema": STRING},
        version={"const": "2.1.0"},
        runs=many(of("run"), minItems=1),
    ),
}


def find_problems(text: str) -> list[str]:
    """Return what of a log is not as the specification has it; empty where all is well."""
    log = json.loads(text)
    validators: list[Any] = [jsonschema.Draft202012Validator(SCHEMA)]
    whole = os.environ.get("SARIF_SCHEMA")
    if whole:
        validators.append(jsonschema.Draft4Validator(json.loads(Path(whole).read_text())))
    found = [f"{list(p.absolute_path)}: {p.message}" for each in validators for p in each.iter_errors(log)]
    return found or [problem for run in log["runs"] for problem in _compare_parts(run)]


def _compare_parts(run: Any) -> list[str]:
    """What a schema cannot say: sections 3.27.5 to 3.27.7, 3.28.2 and 3.49.3."""
    rules = run["tool"]["driver"]["rules"]
    problems = []
    if len({rule["id"] for rule in rules}) != len(rules):
        problems.append("two rules of one id")
    for number, result in enumerate(run["results"]):
        index = result["ruleIndex"]
        if index >= len(rules) or rules[index]["id"] != result["ruleId"]:
            problems.append(f"result {number}: rule {index} is not {result['ruleId']}")
        ids = [place["id"] for place in result.get("relatedLocations", [])]
        if len(set(ids)) != len(ids):
            problems.append(f"result {number}: two locations of one id")
    prints = [tuple(result["partialFingerprints"].items()) for result in run["results"]]
    if len(set(prints)) != len(prints):
        problems.append("two results of one fingerprint")
    return problems
