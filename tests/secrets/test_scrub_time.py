"""Scrubbing costs what a text's length allows, whatever is in it."""

from __future__ import annotations

from functools import partial

import pytest

from ddpdoctor.gather.secrets import find_spans
from tests.patterns.counting import count_events
from tests.secrets.forms import FORMS, MIXED

SHORT, LONG = 3_000, 12_000
PIECES = (
    "password=", 'password="', "password='\\'", "password:\n  ", "password: |\n", "password = 'a' 'b'\n", "token=a,", "key ", "x is ",
    "://a:", "a://a:b@", "a@a.", "-p ", "-u a:", '\\"', "%3D", "\\u0070", "&quot;", "\\\\", "ghp_", "sk_live_", "eyJ", "A", "aB3/",
    "-----BEGIN PRIVATE KEY-----\n", "(((", "token\n", "\n", " ", "Bearer ", "login a password ", "hooks.slack.com/services/",
    MIXED + MIXED + "\n", f"[rank0]: {MIXED}{MIXED}\n", "ncclSocket",
)  # fmt: skip


@pytest.mark.unmeasured
@pytest.mark.parametrize("piece", [*PIECES, *(f"{form.text}\n" for form in FORMS)])
def test_four_times_the_text_takes_four_times_the_work(piece: str) -> None:
    find_spans(piece)  # the patterns are compiled
    short, long = (
        count_events(partial(find_spans, (piece * size)[:size]), 10_000_000) for size in (SHORT, LONG)
    )
    assert long < 6 * short + 2000
