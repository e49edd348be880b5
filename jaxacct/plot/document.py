"""Documents for paper: a headline, a text beside a chart, and tables in small print, as PDF of A4 pages.

The measure of every text is known before it is set, so that nothing passes the margin and no room stays open. A
document has one page where its words fit on one: the small print gets smaller, down to what people can still read,
before it goes on to another page.

In reading order:

- :class:`Section` and :class:`Document`: the content.
- :func:`write`: the pages.
- :func:`lines_of`: a text in lines of a width.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from jaxacct.plot.chart import BLUE, FAINT, GREY, INK, Chart, draw_on, require_matplotlib

WIDTH, HEIGHT, MARGIN = 595.0, 842.0, 50.0
"""Size of a page of A4, and its margin (points). Looks alone, as are all sizes here."""


@dataclass(frozen=True)
class Section:
    """A table with a heading.

    Attributes:
        heading: its title.
        shares: the columns' shares of the width, which sum to 1.
        rows: texts, one for each column.
        names: the columns' names; none by default.
    """

    heading: str
    shares: Sequence[float]
    rows: Sequence[Sequence[str]]
    names: Sequence[str] = ()


@dataclass(frozen=True)
class Document:
    """The content of a document.

    Attributes:
        title: the kind of document; ``date`` stands beside it.
        date: of its making.
        headline: the result, in large print.
        subtitle: conditions of the result, below the headline.
        text: the result in words, with ``chart`` beside it.
        chart: a picture.
        sections: tables in small print.
        footer: the last words, in the smallest print.
    """

    title: str
    date: str
    headline: str
    subtitle: str
    text: str
    chart: Chart
    sections: Sequence[Section]
    footer: str


def write(what: Document, file: BinaryIO) -> int:
    """Writes a document as PDF to an open file, and returns its number of pages: one, where its words fit on one."""
    require_matplotlib()
    from matplotlib.backends.backend_pdf import PdfPages

    sizes = (8.5, 8.0, 7.5, 7.0, 6.5)  # of the small print (points); a second page has the second one
    pages = next((pages for size in sizes if len(pages := _set(what, size)) == 1), None) or _set(what, sizes[1])
    with PdfPages(file, metadata={"CreationDate": None, "Title": what.title}) as pdf:
        for page in pages:
            pdf.savefig(page)
    return len(pages)


class _Pages:
    """Pages, filled from the top to the bottom; ``place`` is the height of the room on the last one (points)."""

    def __init__(self) -> None:
        self.pages: list[Any] = []
        self.turn()

    def turn(self) -> None:
        """Begins a page."""
        new_figure, new_canvas = require_matplotlib()
        self.pages.append(new_figure(figsize=(WIDTH / 72, HEIGHT / 72)))
        new_canvas(self.pages[-1])
        self.place = HEIGHT - MARGIN

    def text(self, x: float, y: float, line: str, size: float, **style: Any) -> None:
        """Sets a line whose top left corner, or the right one, is at (x, y); no sign in it begins a formula."""
        style = {"color": INK, "va": "top", "family": "DejaVu Sans", "parse_math": False} | style
        self.pages[-1].text(x / WIDTH, y / HEIGHT, line, fontsize=size, **style)

    def rule(self, color: str = FAINT, width: float = 0.6) -> None:
        """Draws a line from margin to margin."""
        from matplotlib.lines import Line2D

        across = [MARGIN / WIDTH, 1 - MARGIN / WIDTH]
        self.pages[-1].add_artist(Line2D(across, [self.place / HEIGHT] * 2, color=color, linewidth=width))

    def paragraph(self, text: str, size: float, **style: Any) -> None:
        """Sets a text from margin to margin."""
        for line in lines_of(text, WIDTH - 2 * MARGIN, size, style.get("weight", "normal")):
            self.text(MARGIN, self.place, line, size, **style)
            self.place -= 1.35 * size

    def row(self, cells: Sequence[str], shares: Sequence[float], size: float, **style: Any) -> None:
        """Sets a row of a table, below the line between it and the row before.

        A row that does not fit begins a page; one of many lines continues there instead, and leaves no hole.
        """
        widths = [share * (WIDTH - 2 * MARGIN) for share in shares]
        lefts = list(itertools.accumulate(widths[:-1], initial=MARGIN))
        # There are 10 points between columns.
        columns = [lines_of(cell, width - 10.0, size) for cell, width in zip(cells, widths, strict=True)]
        if self.place - min(max(map(len, columns)), 8) * 1.25 * size < MARGIN:
            self.turn()
        self.rule()
        self.place -= 0.3 * size
        for line in itertools.zip_longest(*columns, fillvalue=""):
            if self.place - size < MARGIN:
                self.turn()
            for left, words in zip(lefts, line, strict=True):
                if words:
                    self.text(left, self.place, words, size, **style)
            self.place -= 1.25 * size
        self.place -= 0.25 * size


def _set(what: Document, size: float) -> list[Any]:
    """Returns the pages of a document with small print of a size."""
    layout = _Pages()
    right = WIDTH - MARGIN
    layout.text(MARGIN, layout.place, what.title, 16, weight="bold")
    layout.text(right, layout.place - 5, what.date, 9, color=GREY, ha="right")
    layout.place -= 26
    layout.rule(INK, 1.0)
    layout.place -= 12
    layout.paragraph(what.headline, 14, color=BLUE, weight="bold")
    layout.place -= 2
    layout.paragraph(what.subtitle, 9.5, color=INK)
    layout.place -= 10
    # The text on the left and the chart on the right, as high as each other: the chart is at least so high.
    least, wide = 165.0, 285.0
    lines = lines_of(what.text, wide, 9.5)
    height = max(least, len(lines) * 1.4 * 9.5)
    for i, line in enumerate(lines):
        layout.text(MARGIN, layout.place - i * 1.4 * 9.5, line, 9.5)
    left, low = MARGIN + wide + 52, layout.place - min(height, 205.0) + 24
    corner = left / WIDTH, low / HEIGHT
    axes = layout.pages[-1].add_axes((*corner, (right - left) / WIDTH, (layout.place - 14 - low) / HEIGHT))
    draw_on(replace(what.chart, title=""), axes)
    axes.set_title(what.chart.title, loc="left", color=INK, fontsize=8)
    axes.tick_params(labelsize=7)
    for text in (axes.xaxis.label, axes.yaxis.label):
        text.set_fontsize(8)
    layout.place -= height + 6
    for section in what.sections:
        layout.place -= 1.1 * size
        if layout.place - 6 * size < MARGIN:
            layout.turn()
        layout.paragraph(section.heading, size + 1.5, weight="bold")
        layout.place -= 0.2 * size
        if section.names:
            layout.row(section.names, section.shares, size, color=GREY)
        for row in section.rows:
            layout.row(row, section.shares, size)
    layout.rule()
    layout.place -= 4
    last = lines_of(what.footer, WIDTH - 2 * MARGIN, 6)
    if layout.place - len(last) * 6 * 1.35 < MARGIN - 18:  # the footer may stand in the margin
        layout.turn()
    layout.paragraph(what.footer, 6, color=GREY)
    return layout.pages


def lines_of(text: str, width: float, size: float, weight: str = "normal") -> list[str]:
    """Returns a text in lines of at most ``width`` points; a word that is longer than a line takes several.

    >>> lines_of("two words", 30, 8), len(lines_of("9" * 40, 60, 8))
    (['two', 'words'], 4)
    """
    lines = [""]
    for word in text.split():
        ahead = f"{lines[-1]} {word}".strip()
        if _width(ahead, size, weight) <= width:
            lines[-1] = ahead
            continue
        if lines[-1]:
            lines.append("")
        # The word by itself: as many of its signs as fit, line by line.
        for sign in word:
            if lines[-1] and _width(lines[-1] + sign, size, weight) > width:
                lines.append("")
            lines[-1] += sign
    return lines


def _width(text: str, size: float, weight: str) -> float:
    """Returns the width of a text (points), as PDF sets it: widths grow with the size, for no hints move them."""
    words = text.split(" ")
    return size * (sum(_unit_width(word, weight) for word in words) + (len(words) - 1) * _unit_width(" ", weight))


@functools.lru_cache(maxsize=10_000)
def _unit_width(word: str, weight: str) -> float:
    """Returns the width of a word in units of the size."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family="DejaVu Sans", size=1.0, weight=weight)
    return float(text_to_path.get_text_width_height_descent(word, font, ismath=False)[0])
