"""Templates of texts: matched by their literals alone, whatever stands between, and found by their rarest word."""

from __future__ import annotations

import time

import pytest

from ddpdoctor.evidence.texts.entries import ENTRIES, NCCL_WARNS, read_table
from ddpdoctor.evidence.texts.matching import LINE_LIMIT, match_line, match_nccl
from ddpdoctor.evidence.texts.templates import FIELD_LIMIT, TemplateIndex, compile_template, list_words

TEMPLATES = [(entry.id, template) for entry in ENTRIES for template in entry.templates]


def test_fields_hold_what_stands_between_the_literals() -> None:
    template = compile_template("Connect to {peer} failed : {error}")
    assert template.match("Connect to 10.0.0.1<45123> failed : Connection timed out") == {
        "peer": "10.0.0.1<45123>",
        "error": "Connection timed out",
    }
    assert template.match("Connect to 10.0.0.1<45123> succeeded") is None


def test_field_of_a_number_takes_nothing_else() -> None:
    template = compile_template("NET/IB: rank {rank} lost device {}")
    assert template.match("NET/IB: rank 7 lost device mlx5_0") == {"rank": "7"}
    assert template.match("NET/IB: rank seven lost device mlx5_0") is None


def test_field_is_bounded_and_braces_can_be_written() -> None:
    template = compile_template("sendReq({})->events={{{},{}}} broken")
    assert template.match("sendReq(0x7f)->events={1,2} broken") == {}
    long = compile_template("Error: {what} happened")
    assert long.match(f"Error: {'x' * (FIELD_LIMIT + 1)} happened") is None


@pytest.mark.parametrize("text", ["{}", "{a}{b} failed", "{a!r} failed", "{a:>3} failed", "%s: {x", "ab {x}"])
def test_template_that_cannot_be_matched_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        compile_template(text)


def test_words_that_touch_a_field_may_be_longer_in_a_text() -> None:
    assert list_words(compile_template("nvmlInit{}() failed: {error}")) == ["failed"]


def test_template_that_says_most_is_found_unless_it_is_refused() -> None:
    index = TemplateIndex(
        {
            "wide": [compile_template("Cuda failure '{error}'")],
            "narrow": [compile_template("Cuda failure 'out of memory'")],
        }
    )
    text = "Cuda failure 'out of memory'"
    assert [(found[0], found[2]) for found in (index.find(text), index.find(text, {"narrow"})) if found] == [
        ("narrow", {}),
        ("wide", {"error": "out of memory"}),
    ]
    assert index.find("nothing of the kind") is None


def test_source_file_of_a_warning_tells_two_meanings_apart() -> None:
    text = "transport/{}:9 NCCL WARN Cuda failure 1 'invalid argument'"
    found = [match_line("node-a:1:2 [0] " + text.format(name))[0][0] for name in ("nvls.cc", "p2p.cc")]
    assert found == ["nccl-nvls-failed", "nccl-cuda-failed"]


@pytest.mark.parametrize(("id", "text"), [(id, template.text) for id, template in TEMPLATES])
def test_every_template_leads_to_an_entry(id: str, text: str) -> None:
    """A text that it makes is known; a narrower class may be the better answer."""
    made = compile_template(text)
    values = ["7"] * len(made.fields)
    said = "".join(part for pair in zip(made.literals, [*values, ""], strict=True) for part in pair)
    assert match_nccl(said) is not None


def test_no_text_makes_the_templates_slow() -> None:
    words = sorted({word for _, template in TEMPLATES for word in list_words(template)})
    hostile = [
        " ".join(words)[:LINE_LIMIT],
        ("NET/IB : Got completion from peer " * LINE_LIMIT)[:LINE_LIMIT],
        ("Connect to failed : " * LINE_LIMIT)[:LINE_LIMIT],
        NCCL_WARNS * (LINE_LIMIT // len(NCCL_WARNS)),
        ("a:1:2 [0] NCCL WARN Call to x failed : " * LINE_LIMIT)[:LINE_LIMIT],
    ]
    match_line(NCCL_WARNS + "warm")
    started = time.process_time()
    for text in hostile:
        match_line(NCCL_WARNS + text)
    # Milliseconds here; something quadratic in the line would take minutes.
    assert time.process_time() - started < 5


def test_table_with_a_key_that_nobody_reads_is_refused() -> None:
    text = "[a]\nrole = noise\nanchor = Xy\npattern = Xy\nexample = Xy\ncolour = red\n"
    with pytest.raises(ValueError, match="colour"):
        list(read_table(text))
