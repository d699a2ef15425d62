from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from ddpdoctor.report.html.svg import Drawing, LogScale, number, polyline, stacked_bar


def test_text_is_escaped_and_named() -> None:
    drawing = Drawing(10, 20, "x", title="<a> & 'b'", ident="i", description="d\u202e")
    drawing.text(1, 2, "</text><script>", "t", "middle")
    drawing.rect(0, 0, 1, 1, "r", "<tip>")
    drawing.circle(1, 1, 0.25, 'c" onload="x')
    root = ElementTree.fromstring(drawing.markup())
    assert root.get("aria-labelledby") == "i-t"
    assert root.get("aria-describedby") == "i-d"
    assert [child.tag for child in root] == ["title", "desc", "text", "rect", "circle"]
    assert root[0].text == "<a> & 'b'"
    assert root[1].text == "d\\u202e"
    assert root[2].text == "</text><script>"
    assert root[3][0].text == "<tip>"
    assert root[4].attrib["class"] == 'c" onload="x'


def test_decoration_is_hidden_from_screen_readers() -> None:
    root = ElementTree.fromstring(stacked_bar([(3, "a"), (0, "b"), (1, "c")], "bar"))
    assert root.get("aria-hidden") == "true"
    assert [(part.get("class"), part.get("width")) for part in root] == [("a", "75"), ("c", "25")]
    assert len(ElementTree.fromstring(stacked_bar([(0, "a")], "bar"))) == 0


def test_log_scale_maps_factors_to_distances() -> None:
    scale = LogScale(1, 1024, 0, 100, 2)
    assert scale(1) == 0
    assert scale(1024) == pytest.approx(100)
    assert scale(32) == pytest.approx(50)
    assert scale.ticks(11) == [2.0**n for n in range(11)]
    assert scale.ticks(6) == [1, 4, 16, 64, 256, 1024]


def test_short_range_gets_finer_ticks_and_one_value_a_place() -> None:
    assert LogScale(0.6, 8, 0, 1, 10).ticks(7) == [1, 2, 5]
    one = LogScale(5, 5, 0, 100, 10)
    assert one(5) == pytest.approx(50)
    assert all(math.isfinite(one(tick)) for tick in one.ticks(7))


def test_numbers_and_lines() -> None:
    assert [number(v) for v in (1.0, 0.25, 12.34, -0.5)] == ["1", "0.2", "12.3", "-0.5"]
    assert polyline([(0, 1), (2.5, 3)]) == "M0 1L2.5 3"
