from __future__ import annotations

import pytest

from ddpdoctor.text.characters import clip, neutralise, to_ascii, width_of, wrap


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain · ✓", "plain · ✓"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("bell\x07 del\x7f csi\x9b", "bell\\x07 del\\x7f csi\\x9b"),
        ("two\nlines\r\n\tin", "two lines   in"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("line\u2028break\ufeff", "line\\u2028break\\ufeff"),
        ("lone\ud800", "lone\\ud800"),
    ],
)
def test_nothing_that_a_terminal_obeys_is_left(text: str, shown: str) -> None:
    assert neutralise(text) == shown


def test_ascii_stands_in_for_our_signs_and_escapes_the_rest() -> None:
    assert to_ascii("✓ 61 µs · a → b … é") == "ok 61 us - a -> b ... \\xe9"


def test_width_counts_columns() -> None:
    assert [width_of(text) for text in ("abc", "日本", "e\u0301", "✓")] == [3, 4, 1, 1]


def test_wrap_breaks_at_spaces_and_cuts_long_words() -> None:
    assert wrap("aaa bb cccc", 6) == ["aaa bb", "cccc"]
    assert wrap("abcdefgh ij", 3) == ["abc", "def", "gh", "ij"]
    assert wrap("日本日本日", 4) == ["日本", "日本", "日"]
    assert wrap("", 5) == [""]
    assert wrap("aa bbb", 5, first=2) == ["aa", "bbb"]
    assert wrap("aaa bbb", 5, first=2) == ["", "aaa", "bbb"]


def test_wrap_keeps_what_is_between_dots_together() -> None:
    assert wrap("one two · three four · five", 13, dot="·") == ["one two ·", "three four ·", "five"]
    assert wrap("a b c d e f · g", 5, dot="·") == ["a b c", "d e f", "· g"]


def test_clip_marks_what_was_cut() -> None:
    assert clip("abcdef", 6) == "abcdef"
    assert clip("abcdefg", 6) == "abcde…"
    assert clip("abcdefg", 6, mark="...") == "abc..."
    assert clip("日本日本", 5) == "日本…"
