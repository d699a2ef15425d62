"""From words to codes: what is selected, and what is ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ddpdoctor.errors import UsageError
from ddpdoctor.text.suggest import closest

if TYPE_CHECKING:
    from ddpdoctor.judge.selection import Selection
    from ddpdoctor.plugins import Plugins


def name_codes(plugins: Plugins) -> dict[str, str]:
    """Return code -> name of all findings that can be chosen."""
    return {code: page.name for code, page in plugins.checks.pages.items()}


def make_selection(
    select: Sequence[str] | None, ignore: Sequence[str], names: Mapping[str, str]
) -> Selection:
    """Return the selection that words ask for.

    Args:
        select: codes, prefixes or names to keep; None is all.
        ignore: those to leave out.
        names: code -> name of all findings that can be chosen.

    Raises:
        UsageError: a word names nothing that a check of this installation can find.
    """
    from ddpdoctor.judge.selection import Selection

    kept = None if select is None else choose_words("--select", select, names)
    return Selection(kept, choose_words("--ignore", ignore, names))


def choose_words(option: str, words: Sequence[str], names: Mapping[str, str]) -> frozenset[str]:
    """Return the codes that the words of one option mean.

    Raises:
        UsageError: a word names nothing that a check of this installation can find.
    """
    chosen: frozenset[str] = frozenset()
    for word in words:
        found = match_codes(word, names)
        if not found:
            near = closest(word, [*names, *names.values()])
            raise UsageError(
                f"{option}: no installed check has the code, prefix or name {word!r}",
                hint=f"{option} {near}" if near else "ddpdoctor list",
            )
        chosen |= found
    return chosen


def match_codes(word: str, names: Mapping[str, str]) -> frozenset[str]:
    """Return the codes that ``word`` means: a code, a prefix of codes, or a name; empty when none.

    Args:
        word: as typed, in any case.
        names: code -> name of everything that can be chosen.
    """
    wanted = word.lower()
    exact = frozenset(c for c, name in names.items() if wanted in (c.lower(), name.lower()))
    return exact or frozenset(code for code in names if code.lower().startswith(wanted))
