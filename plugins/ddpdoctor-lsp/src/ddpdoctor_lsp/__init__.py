"""A language server over stdio: lint on open and save, corrections as code actions."""

from __future__ import annotations

import asyncio
import difflib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path
from pygls.workspace import Workspace

import ddpdoctor

SOURCE = "ddpdoctor"
FIX_ALL = "source.fixAll.ddpdoctor"
SEVERITIES = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "info": types.DiagnosticSeverity.Information,
}


@dataclass
class State:
    """What is known of the open files."""

    reports: dict[str, ddpdoctor.Report] = field(default_factory=dict)
    """Newest report of each file, by URI."""
    turns: dict[str, int] = field(default_factory=dict)
    """Number of the newest lint of each file, by URI; what comes later of an older one is dropped."""


def make_server() -> LanguageServer:
    """Return a server that is not started yet."""
    server = LanguageServer(SOURCE, ddpdoctor.__version__)
    state = State()

    @server.feature(types.INITIALIZED)
    def enter_workspace(_: types.InitializedParams) -> None:
        """Findings name files from the working directory: that of the workspace."""
        if server.workspace.root_path and os.path.isdir(server.workspace.root_path):
            os.chdir(server.workspace.root_path)

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    async def opened(given: types.DidOpenTextDocumentParams) -> None:
        await _publish(server, state, given.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    async def saved(given: types.DidSaveTextDocumentParams) -> None:
        await _publish(server, state, given.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(given: types.DidCloseTextDocumentParams) -> None:
        uri = given.text_document.uri
        state.turns[uri] = state.turns.get(uri, 0) + 1
        state.reports.pop(uri, None)
        server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))

    @server.feature(
        types.TEXT_DOCUMENT_CODE_ACTION,
        types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix, FIX_ALL]),
    )
    def act(given: types.CodeActionParams) -> list[types.CodeAction]:
        uri = given.text_document.uri
        report = state.reports.get(uri)
        text = server.workspace.get_text_document(uri).source
        return [] if report is None else list(_list_actions(report, uri, text, given, server.workspace))

    return server


async def lint(path: str) -> ddpdoctor.Report | str:
    """Lint a file in a process of its own, by the settings of the workspace; a sentence where there is no report."""
    with tempfile.TemporaryDirectory(prefix="ddpdoctor-lsp-") as folder:
        saved = Path(folder, "report.json")
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ddpdoctor", "lint", "-q", "--json", str(saved), "--", path),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await child.communicate()
        try:
            return ddpdoctor.load_report(saved)
        except ddpdoctor.DoctorError:
            return said.decode("utf-8", "replace").strip() or "ddpdoctor left no report"


async def _publish(server: LanguageServer, state: State, uri: str) -> None:
    path = to_fs_path(uri)
    if path is None or not path.endswith(".py"):
        return
    turn = state.turns[uri] = state.turns.get(uri, 0) + 1
    report = await lint(path)
    if state.turns.get(uri) != turn:
        return
    if isinstance(report, str):
        server.window_log_message(types.LogMessageParams(types.MessageType.Warning, report))
        return
    state.reports[uri] = report
    found = [make_diagnostic(each, server.workspace) for each in _list_findings(report, path)]
    server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, found))


def _list_findings(report: ddpdoctor.Report, path: str) -> Iterator[ddpdoctor.Finding]:
    for each in report.findings:
        if (
            each.state == "active"
            and each.where
            and os.path.realpath(each.where[0].file) == os.path.realpath(path)
        ):
            yield each


def make_diagnostic(finding: ddpdoctor.Finding, workspace: Workspace) -> types.Diagnostic:
    """Return a finding as an editor shows it: at its first place, the others beside it."""
    fixes = "".join(f"\nfix: {each.text}" for each in finding.fix)
    return types.Diagnostic(
        range=_range(finding.where[0], workspace),
        message=f"{finding.message}{fixes}",
        severity=SEVERITIES.get(finding.severity or "", types.DiagnosticSeverity.Information),
        code=finding.code,
        source=SOURCE,
        related_information=[
            types.DiagnosticRelatedInformation(
                types.Location(_name_uri(place), _range(place, workspace)), place.role
            )
            for place in finding.where[1:]
        ],
    )


def _name_uri(place: ddpdoctor.Where) -> str:
    return f"file://{quote(os.path.realpath(place.file))}"


def _range(place: ddpdoctor.Where, workspace: Workspace) -> types.Range:
    """Return where a place is in the units that the client counts columns in: UTF-16 unless it asked for others.

    A report counts characters.
    """
    line, column = place.line - 1, (place.column or 1) - 1
    end = column + len((place.source or "").splitlines()[0]) if place.source else column
    counted = types.Range(types.Position(line, column), types.Position(line, max(end, column + 1)))
    document = workspace.get_text_document(_name_uri(place))
    try:
        return document.position_codec.range_to_client_units(document.lines, counted)
    except (OSError, ValueError):  # the file is gone, or is not UTF-8
        return counted


def _list_actions(
    report: ddpdoctor.Report, uri: str, text: str, given: types.CodeActionParams, workspace: Workspace
) -> Iterator[types.CodeAction]:
    """Yield a correction for each finding in the range that has one, and one for all of the file."""
    path, wanted = to_fs_path(uri) or "", given.context.only
    first, last = given.range.start.line, given.range.end.line
    findings = list(_list_findings(report, path))
    for each in findings:
        if first <= each.where[0].line - 1 <= last and _asks(wanted, types.CodeActionKind.QuickFix):
            edits = _make_edits(replace(report, findings=(each,)), path, text)
            if edits:
                change = types.WorkspaceEdit(changes={uri: edits})
                yield types.CodeAction(
                    f"ddpdoctor: correct {each.code} {each.name}",
                    kind=types.CodeActionKind.QuickFix,
                    diagnostics=[make_diagnostic(each, workspace)],
                    edit=change,
                    is_preferred=True,
                )
    edits = _make_edits(report, path, text) if _asks(wanted, FIX_ALL) else []
    if edits:
        change = types.WorkspaceEdit(changes={uri: edits})
        yield types.CodeAction("ddpdoctor: apply all safe corrections", kind=FIX_ALL, edit=change)


def _asks(wanted: Sequence[types.CodeActionKind | str] | None, kind: str) -> bool:
    """Whether actions of a kind are asked for; a kind has those below it."""
    return wanted is None or any(
        kind == str(each) or kind.startswith(f"{each!s}.") for each in map(_word, wanted)
    )


def _word(kind: types.CodeActionKind | str) -> str:
    return kind.value if isinstance(kind, types.CodeActionKind) else kind


def _make_edits(report: ddpdoctor.Report, path: str, text: str) -> list[types.TextEdit]:
    """Return what the corrections change in a file; nothing where the editor holds another text than the disk."""
    for each in ddpdoctor.corrections(report):
        if os.path.realpath(each.file) == os.path.realpath(path) and each.before.decode("utf-8") == text:
            return list(_diff(text, each.after.decode("utf-8")))
    return []


def _diff(before: str, after: str) -> Iterator[types.TextEdit]:
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    for tag, start, end, first, last in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            place = types.Range(types.Position(start, 0), types.Position(end, 0))
            yield types.TextEdit(place, "".join(new[first:last]))


def main() -> None:
    """Serve over stdio."""
    make_server().start_io()
