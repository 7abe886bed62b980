"""Charts as inline SVG: a Vega-Lite specification, drawn by vl-convert without a browser or a network.

Colours are CSS variables of the page, so that a chart follows light, dark and print. The SVG is then made fit for the
page: no style attribute (the page's policy forbids them), no fixed size, a tooltip per point, names made visible. The
same report gives the same bytes. What could be wrong: vl-convert's next version may draw the same specification with
other elements; the tests hold what the page relies on.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

_SVG = "http://www.w3.org/2000/svg"

CONFIG = {
    "view": {"stroke": None},
    "axis": {
        "gridColor": "var(--line)", "domainColor": "var(--line-strong)", "tickColor": "var(--line-strong)",
        "labelColor": "var(--ink-soft)", "titleColor": "var(--ink-soft)", "labelFont": "sans-serif",
        "titleFont": "sans-serif", "labelFontSize": 13, "titleFontSize": 13, "titleFontWeight": "normal",
        "titlePadding": 10,
    },
    "text": {"font": "sans-serif"},
}  # fmt: skip
"""How axes and text look in every chart."""


def svg_of(spec: dict[str, object], description: str) -> str:
    """vl-convert's drawing of a specification, made fit for the page; `description` is what is read out for it."""
    import vl_convert

    root = ET.fromstring(vl_convert.vegalite_to_svg(spec))  # noqa: S314 our own drawing, no entity in it
    for element in root.iter():
        element.tag = element.tag.removeprefix(f"{{{_SVG}}}")
        style = element.attrib.pop("style", "")
        for name, value in re.findall(r"([\w-]+)\s*:\s*([^;]+)", style):
            if name in ("fill", "stroke", "opacity"):
                element.set(name, value.strip())
        for name in [name for name in element.attrib if name in ("class", "font-family") or name.startswith("{")]:
            del element.attrib[name]
        said = element.attrib.pop("aria-label", None)
        element.attrib.pop("aria-roledescription", None)
        if element.attrib.pop("role", None) == "graphics-symbol" and said and element.tag == "path":
            title = ET.Element("title")
            title.text = said
            element.insert(0, title)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    root.attrib.clear()
    root.attrib |= {"class": "chart", "viewBox": f"0 0 {width:g} {height:g}", "role": "img", "aria-label": description}
    return ET.tostring(root, encoding="unicode", short_empty_elements=True)
