from __future__ import annotations

from ddpdoctor.text.paper import Paper


def test_text_follows_its_label_and_hangs_below_it() -> None:
    paper = Paper(width=26)
    paper.put("one two three four", label="seen", indent=2, hang=8)
    paper.put("one two three", label="a longer label", indent=2, hang=4)
    assert paper.text() == "  seen  one two three four\n  a longer label one two three\n"
    narrow = Paper(width=25)
    narrow.put("one two three four", label="seen", indent=2, hang=8)
    assert narrow.text() == "  seen  one two three\n        four\n"


def test_parts_are_broken_at_their_dots() -> None:
    paper = Paper(width=20)
    paper.put_parts("head", ["first part", "", "second part", "x"], hang=4, style=None)
    assert paper.text() == "head · first part\n    second part · x\n"


def test_gaps_are_never_doubled_and_never_first() -> None:
    paper = Paper()
    paper.gap()
    paper.put("a")
    paper.gap()
    paper.gap()
    paper.put("b")
    assert paper.text() == "a\n\nb\n"


def test_colour_only_where_it_is_shown() -> None:
    plain, coloured = Paper(), Paper(color=True)
    for paper in (plain, coloured):
        paper.put("text", style="red")
    assert plain.text() == "text\n"
    assert coloured.text() == "\x1b[31;1mtext\x1b[0m\n"


def test_everything_written_is_harmless_and_ascii_where_asked() -> None:
    paper = Paper(ascii=True, width=60)
    paper.put("a\x1b[2J ✓", label="l\x07")
    paper.put_verbatim("$ v\x1b", indent=1)
    paper.put_parts("p\x1b", ["q\x1b"], hang=2, style=None)
    paper.put_row([("r\x1b", 6, None), ("much too long a cell", 8, None)], indent=0)
    text = paper.text()
    assert text.isascii()
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "a\\x1b[2J ok" in text
    assert "much ..." in text


def test_commands_are_never_wrapped() -> None:
    paper = Paper(width=20)
    paper.put_verbatim("x" * 50, indent=2)
    assert paper.text() == f"  {'x' * 50}\n"
