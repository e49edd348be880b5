"""Documents for paper: one page where the words fit on one, nothing past the margin, nothing left out."""

import io

import numpy as np
import pytest

from jaxacct.plot import Chart, Document, Section, Series, document, write

CHART = Chart("The attack", "a", "wrong", "right", np.array([0.0, 0.5, 1.0]), [Series("b", "bound", [0.0, 0.9, 1.0])])
SHORT = [("10 times", "Laplace, scale 2"), ("once", "Gaussian, noise multiplier 8")]
NASTY = "one $ person's $ visits_and_^ \\frac{ 9" + "9" * 300


def made(rows, words="of one person"):
    sections = [Section("What was released", (0.2, 0.8), rows, ("times", "mechanism"))]
    return Document(
        "Certificate", "made 2027-01-04", "epsilon = 1", words, "It is so. " * 60, CHART, sections, "0f" * 70
    )


@pytest.mark.first_tier("rows0-of one person-1")
@pytest.mark.parametrize(
    ("rows", "words", "pages"),
    [
        (SHORT, "of one person", 1),
        ([("3 times", NASTY)] * 4, NASTY, 1),
        (SHORT * 15, "of one person", 1),
        ([("1 time", "a word of the spec " * 500)], "of one person", 3),
    ],
)
def test_nothing_passes_the_margin_and_one_page_is_enough(rows, words, pages):
    file = io.BytesIO()
    assert write(made(rows, words), file) <= pages
    assert file.getvalue()[:4] == b"%PDF"
    set_ = document._set(made(rows, words), 7.5)
    shown = ""
    for page in set_:
        renderer = page.canvas.get_renderer()
        for text in page.texts:
            box = text.get_window_extent(renderer).transformed(page.transFigure.inverted())
            assert min(box.x0, 1 - box.x1) >= document.MARGIN / document.WIDTH - 0.003
            assert 0 < box.y0 < box.y1 < 1
            shown += text.get_text()
    # Every sign of every cell is there, in its order within its line.
    assert sum(map(len, shown.split())) >= len("".join("".join(row) for row in rows).replace(" ", ""))


def test_no_page_has_a_hole():
    """A page that goes on to another one is filled to the end, but for the lines that stay together."""
    (first, *_) = document._set(made([("1 time", "a word of the spec " * 500)]), 8.0)
    lowest = min(text.get_position()[1] for text in first.texts)
    assert lowest * document.HEIGHT < document.MARGIN + 3 * 8.0
