"""Pictures of privacy, one call each: functions that draw onto ``axes`` of matplotlib, or onto new ones.

A bracket is a band, with the end that protects as a line. All eyes can distinguish the colours, and dashes distinguish
curves in grey. Drawing imports matplotlib (the extra ``[plot]``).

* :mod:`.curves`: pictures of one run, of many runs, and of a training.
* :mod:`.chart`: the common style, and charts with their numbers, for commands and exhibits.
* :mod:`.document`: documents for paper.
"""

from jaxacct.plot.chart import Chart as Chart
from jaxacct.plot.chart import Series as Series
from jaxacct.plot.chart import draw as draw
from jaxacct.plot.chart import require_matplotlib as require_matplotlib
from jaxacct.plot.chart import write_csv as write_csv
from jaxacct.plot.curves import (
    ACCOUNTANTS,
    epsilon_over_steps,
    least_noise,
    profile,
    sweep,
    tradeoff,
    training,
    what_if,
)
from jaxacct.plot.document import Document as Document
from jaxacct.plot.document import Section as Section
from jaxacct.plot.document import write as write

__all__ = [
    "ACCOUNTANTS",
    "epsilon_over_steps",
    "least_noise",
    "profile",
    "sweep",
    "tradeoff",
    "training",
    "what_if",
]
