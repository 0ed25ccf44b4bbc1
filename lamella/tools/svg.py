"""Shapes and text go in; an SVG picture on a white page leaves, in which every text is known to be as wide as it looks."""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree import ElementTree

FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
NAMESPACE = "http://www.w3.org/2000/svg"
ADVANCE = 0.6025
"""Width of a character of a monospaced font, in font sizes; DejaVu Sans Mono, the widest of the usual ones."""
INK, FAINT = "#1d2733", "#6b7785"


def text_width(text: str, size: float) -> float:
    """Pixels a text takes."""
    return len(text) * size * ADVANCE


def fitting(text: str, width: float, size: float) -> str:
    """The text, shortened with an ellipsis where it is wider than `width`; empty where not even two characters fit."""
    room = int(width / (size * ADVANCE))
    if len(text) <= room:
        return text
    return text[: room - 1] + "…" if room >= 2 else ""


@dataclass
class Picture:
    """A picture under construction; coordinates are pixels from the top left corner."""

    width: float
    height: float
    title: str

    def __post_init__(self) -> None:
        size = {"width": number(self.width), "height": number(self.height), "viewBox": f"0 0 {number(self.width)} {number(self.height)}"}
        self.root = ElementTree.Element("svg", {"xmlns": NAMESPACE, **size, "font-family": FONT, "role": "img"})
        ElementTree.SubElement(self.root, "title").text = self.title
        self.rect(0, 0, self.width, self.height, fill="#ffffff")

    def rect(
        self, x: float, y: float, width: float, height: float, *, fill: str, stroke: str = "none", radius: float = 0, dashed: bool = False
    ) -> ElementTree.Element:
        """A rectangle; the caller may add a `title` to what is returned."""
        attributes = {"x": number(x), "y": number(y), "width": number(width), "height": number(height), "fill": fill, "stroke": stroke}
        if radius:
            attributes["rx"] = number(radius)
        if dashed:
            attributes["stroke-dasharray"] = "4 3"
        return ElementTree.SubElement(self.root, "rect", attributes)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12,
        fill: str = INK,
        anchor: str = "start",
        bold: bool = False,
        up: bool = False,
    ) -> None:
        """A line of text whose baseline is at y; `up` turns it to read upwards."""
        attributes = {"x": number(x), "y": number(y), "font-size": number(size), "fill": fill}
        if anchor != "start":
            attributes["text-anchor"] = anchor
        if bold:
            attributes["font-weight"] = "bold"
        if up:
            attributes["transform"] = f"rotate(-90 {number(x)} {number(y)})"
        ElementTree.SubElement(self.root, "text", attributes).text = text

    def line(self, x1: float, y1: float, x2: float, y2: float, *, stroke: str = FAINT, dashed: bool = False) -> None:
        """A straight line."""
        attributes = {"x1": number(x1), "y1": number(y1), "x2": number(x2), "y2": number(y2), "stroke": stroke}
        if dashed:
            attributes["stroke-dasharray"] = "4 3"
        ElementTree.SubElement(self.root, "line", attributes)

    def arrow(self, x1: float, y1: float, x2: float, y2: float, *, stroke: str = INK) -> None:
        """A horizontal or vertical line with a head at its second end."""
        self.line(x1, y1, x2, y2, stroke=stroke)
        along = (6.0 if x2 > x1 else -6.0 if x2 < x1 else 0.0, 6.0 if y2 > y1 else -6.0 if y2 < y1 else 0.0)
        across = (along[1] / 2, along[0] / 2)
        corners = [
            (x2, y2),
            (x2 - along[0] + across[0], y2 - along[1] + across[1]),
            (x2 - along[0] - across[0], y2 - along[1] - across[1]),
        ]
        points = " ".join(f"{number(x)},{number(y)}" for x, y in corners)
        ElementTree.SubElement(self.root, "polygon", {"points": points, "fill": stroke})

    def render(self) -> str:
        """The file's text."""
        ElementTree.indent(self.root)
        return ElementTree.tostring(self.root, encoding="unicode") + "\n"


def number(value: float) -> str:
    """A coordinate with at most one digit after the point."""
    return f"{value:.1f}".removesuffix(".0")
