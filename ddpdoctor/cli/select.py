"""From the words of --select and --ignore to codes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddpdoctor.cli.suggest import closest
from ddpdoctor.errors import UsageError

if TYPE_CHECKING:
    from ddpdoctor.judge.registry import Registry
    from ddpdoctor.judge.selection import Selection


def choose_selection(options: argparse.Namespace, registry: Registry) -> Selection:
    """Return the selection that the options ask for.

    Raises:
        UsageError: a word names nothing that a check of this installation can find.
    """
    from ddpdoctor.judge.selection import Selection

    select = getattr(options, "select", None)
    return Selection(
        None if select is None else _codes("--select", select, registry),
        _codes("--ignore", getattr(options, "ignore", ()), registry),
    )


def _codes(option: str, words: Sequence[str], registry: Registry) -> frozenset[str]:
    from ddpdoctor.judge.selection import match_codes

    names = {code: page.name for code, page in registry.pages.items()}
    chosen: frozenset[str] = frozenset()
    for word in words:
        found = match_codes(word, names)
        if not found:
            near = closest(word, [*names, *names.values()])
            raise UsageError(
                f"{option}: no check of this installation has the code, prefix or name {word!r}",
                hint=f"{option} {near}" if near else "ddpdoctor list",
            )
        chosen |= found
    return chosen
