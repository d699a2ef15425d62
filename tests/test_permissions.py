"""Paths that may not be looked at."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
RAISING = ("exists", "is_dir", "is_file", "is_mount", "is_socket", "is_symlink")
"""Methods of Path that raise PermissionError behind a directory that may not be entered, before Python 3.14."""


def test_no_question_about_a_path_raises() -> None:
    """What is asked by os.path is answered with no; the methods of Path ended commands as internal errors."""
    asked = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for folder in ("ddpdoctor", "checks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "demos" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in RAISING
        and not node.args
        and not node.keywords  # of an os.DirEntry, which has them, the answer is known
    ]
    assert not asked
