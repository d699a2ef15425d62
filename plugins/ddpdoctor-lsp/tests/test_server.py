"""The server as a process, and a real client that speaks to it over stdio."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("pygls") is None, reason="pygls is not installed")

WRONG = """\
import os
import torch.distributed as dist

dist.init_process_group("gloo")
os.makedirs("out")
if dist.get_rank() == 0:
    dist.barrier()
"""
LIMIT_S = 120


def talk(root: Path, say: Callable[[Any, asyncio.Queue[Any]], Awaitable[None]]) -> None:
    """Start a server in another directory than the workspace's, say something, and end it well."""
    from lsprotocol import types
    from pygls.lsp.client import LanguageClient

    async def go() -> None:
        client = LanguageClient("test", "1")
        heard: asyncio.Queue[Any] = asyncio.Queue()
        for name in (types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS, types.WINDOW_LOG_MESSAGE):
            client.feature(name)(lambda given: heard.put_nowait(given))
        await client.start_io(sys.executable, "-c", "import ddpdoctor_lsp; ddpdoctor_lsp.main()", cwd="/")
        await client.initialize_async(
            types.InitializeParams(types.ClientCapabilities(), root_uri=root.as_uri(), process_id=None)
        )
        client.initialized(types.InitializedParams())
        await say(client, heard)
        await client.shutdown_async(None)
        client.exit(None)
        await client.stop()

    asyncio.run(asyncio.wait_for(go(), LIMIT_S))


def open_file(client: Any, path: Path) -> Any:
    from lsprotocol import types

    item = types.TextDocumentItem(path.as_uri(), "python", 1, path.read_text())
    client.text_document_did_open(types.DidOpenTextDocumentParams(item))
    return types.TextDocumentIdentifier(path.as_uri())


def test_findings_are_diagnostics_and_corrections_are_actions(tmp_path: Path) -> None:
    from lsprotocol import types

    path = tmp_path / "train.py"
    path.write_text(WRONG)

    async def say(client: Any, heard: asyncio.Queue[Any]) -> None:
        document = open_file(client, path)
        found = {each.code: each for each in (await heard.get()).diagnostics}
        assert set(found) == {"COL002", "CKP005"}
        assert found["COL002"].range.start == types.Position(6, 4)
        assert found["COL002"].severity == types.DiagnosticSeverity.Error
        assert "the other ranks never reach it" in found["COL002"].message
        assert "fix: move the call out of the `if`" in found["COL002"].message
        (related,) = found["COL002"].related_information
        assert (related.location.uri, related.location.range.start.line) == (path.as_uri(), 5)

        async def ask(line: int, only: list[Any] | None = None) -> list[Any]:
            place = types.Range(types.Position(line, 0), types.Position(line, 0))
            context = types.CodeActionContext([], only=only)
            asked = types.CodeActionParams(document, place, context)
            return await client.text_document_code_action_async(asked) or []

        quick, whole = await ask(4)
        assert (quick.kind, whole.kind) == ("quickfix", "source.fixAll.ddpdoctor")
        for action in (quick, whole):
            (edit,) = action.edit.changes[path.as_uri()]
            assert edit.new_text == 'os.makedirs("out", exist_ok=True)\n'
            assert (edit.range.start.line, edit.range.end.line) == (4, 5)
        assert [each.kind for each in await ask(6, only=["quickfix"])] == []
        assert [each.kind for each in await ask(0, only=["source"])] == ["source.fixAll.ddpdoctor"]

        changed = types.TextDocumentContentChangeWholeDocument("# new\n" + WRONG)
        versioned = types.VersionedTextDocumentIdentifier(2, path.as_uri())
        client.text_document_did_change(types.DidChangeTextDocumentParams(versioned, [changed]))
        assert await ask(4) == []

        path.write_text("import os\n")
        client.text_document_did_save(types.DidSaveTextDocumentParams(document))
        assert not (await heard.get()).diagnostics

    talk(tmp_path, say)


def test_columns_are_counted_as_the_client_counts(tmp_path: Path) -> None:
    """Characters beyond the BMP are two units of UTF-16, which is what clients count in unless they ask for others."""
    path = tmp_path / "train.py"
    path.write_text(
        WRONG.replace("    dist.barrier()", "    print('\U0001f600\U0001f600'); dist.barrier()"), "utf-8"
    )

    async def say(client: Any, heard: asyncio.Queue[Any]) -> None:
        document = open_file(client, path)
        found = {each.code: each for each in (await heard.get()).diagnostics}
        assert (found["COL002"].range.start.line, found["COL002"].range.start.character) == (6, 19)
        path.unlink()  # what is gone costs no answer
        client.text_document_did_save(types.DidSaveTextDocumentParams(document))
        assert await heard.get()

    from lsprotocol import types

    talk(tmp_path, say)


def test_settings_of_the_workspace_count_and_a_broken_one_is_logged(tmp_path: Path) -> None:
    from lsprotocol import types

    path = tmp_path / "src" / "train.py"
    path.parent.mkdir()
    path.write_text(WRONG)
    settings = tmp_path / "pyproject.toml"
    settings.write_text('[tool.ddpdoctor.lint.per_file_ignores]\n"src/*" = ["COL002"]\n')

    async def say(client: Any, heard: asyncio.Queue[Any]) -> None:
        document = open_file(client, path)
        assert [each.code for each in (await heard.get()).diagnostics] == ["CKP005"]
        settings.write_text("[tool.ddpdoctor.lint]\nexclde = []\n")
        client.text_document_did_save(types.DidSaveTextDocumentParams(document))
        assert "has no setting 'exclde'" in (await heard.get()).message
        client.text_document_did_close(types.DidCloseTextDocumentParams(document))
        assert not (await heard.get()).diagnostics

    talk(tmp_path, say)
