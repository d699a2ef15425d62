"""Finding secrets in strings: by their shape, by the name before them, and by their position.

Each finder takes a text and yields spans. `find_spans` applies them all, also to the text as it reads without escapes
and line breaks, and gives the places in the text as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from ddpdoctor.gather.secrets.addresses import find_addresses
from ddpdoctor.gather.secrets.command_lines import find_in_commands
from ddpdoctor.gather.secrets.fields import find_fields
from ddpdoctor.gather.secrets.known import find_known
from ddpdoctor.gather.secrets.shapes import continues, extend, find_keys, find_runs, find_tokens
from ddpdoctor.gather.secrets.spans import Span, merge
from ddpdoctor.gather.secrets.views import joined_view, read_views

FINDERS: tuple[Callable[[str], Iterator[Span]], ...] = (
    find_known,
    find_keys,
    find_tokens,
    find_runs,
    find_fields,
    find_addresses,
    find_in_commands,
)


def find_spans(text: str) -> list[Span]:
    """Return the stretches of a text that are to be hidden, in order, without overlap."""
    found: list[Span] = []
    for view in read_views(text):
        spans = merge(span for finder in FINDERS for span in finder(view.text))
        if spans:
            found += [
                Span(view.start(start), view.end(end), shown)
                for start, end, shown in extend(view.text, spans)
            ]
    if "\n" in text:
        found += _find_broken(text, merge(found))
    return merge(found)


def _find_broken(text: str, known: list[Span]) -> Iterator[Span]:
    """Yield tokens of a known shape that a line break cuts, as far as each line's part looks like a token's."""
    view = joined_view(text)
    if view is None:
        return
    ends = {span.end for span in known}
    for start, end, shown in find_tokens(view.text):
        cuts = view.breaks(start, end)
        if not cuts or view.end(cuts[0]) in ends:
            continue
        edges = [start, *cuts, end]
        for number, (first, last) in enumerate(itertools.pairwise(edges)):
            if number and not continues(view.text[first:last]):
                break
            yield Span(view.start(first), view.end(last), shown)
