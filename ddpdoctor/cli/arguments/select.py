"""From the options --select and --ignore to codes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ddpdoctor.api.choosing import choose_words

if TYPE_CHECKING:
    from ddpdoctor.judge.selection import Selection


def choose_selection(options: argparse.Namespace, names: Mapping[str, str]) -> Selection:
    """Return the selection that the options ask for.

    Args:
        options: parsed options.
        names: code -> name of all findings that can be chosen.

    Raises:
        UsageError: a word names nothing that a check of this installation can find.
    """
    from ddpdoctor.api.choosing import make_selection

    return make_selection(getattr(options, "select", None), getattr(options, "ignore", ()), names)


def choose_codes(
    options: argparse.Namespace, names: Mapping[str, str]
) -> tuple[frozenset[str] | None, frozenset[str]]:
    """Return the codes to keep (None is all) and those to leave out.

    Raises:
        UsageError: a word names nothing that a check of this installation can find.
    """
    select = getattr(options, "select", None)
    return (
        None if select is None else choose_words("--select", select, names),
        choose_words("--ignore", getattr(options, "ignore", ()), names),
    )
