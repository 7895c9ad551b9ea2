"""What the diagrams show."""

from xml.etree import ElementTree

from support.bench.levels import FAILED, SPOKEN, level, report

from omnistage.bench.plot import panels, to_svg


def test_a_diagram_has_the_panels_that_have_values() -> None:
    drawn = panels([level(1, SPOKEN), level(8, FAILED)])
    assert [panel.title for panel in drawn] == [
        "TTFT ms",
        "TTFP ms",
        "RTF",
        "longest stall ms",
        "requests/s",
        "audio s/s",
    ]
    assert drawn[0].lines == {"p50": [125.0, None], "p95": [125.0, None]}
    text = SPOKEN.model_copy(update={"packets": ()})
    assert [panel.title for panel in panels([level(1, text)])] == ["TTFT ms", "requests/s"]


def test_a_diagram_is_svg_whatever_the_values() -> None:
    for levels in ([level(1, SPOKEN), level(8, SPOKEN)], [level(1, FAILED)]):
        root = ElementTree.fromstring(to_svg(report(*levels)))
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.findall(".//*[@cx='nan']") == []


def test_points_of_a_line_rise_with_their_values() -> None:
    slow = SPOKEN.model_copy(update={"text_arrivals_s": (0.5,)})
    root = ElementTree.fromstring(to_svg(report(level(1, SPOKEN), level(8, slow))))
    line = root.find(".//{*}polyline")
    assert line is not None
    (left, low), (right, high) = (
        tuple(map(float, point.split(","))) for point in line.attrib["points"].split()
    )
    assert left < right
    assert high < low
