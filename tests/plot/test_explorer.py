"""The interactive page: its data are the library's, and what it says between them is never below the truth."""

import json
import pathlib
import shutil
import subprocess

import numpy as np
import pytest

import jaxacct as ja
from jaxacct.outward import steps_of
from jaxacct.plot import explorer

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "explore.html"


def answers(page, settings):
    """What the page's own lines answer at (noise, rate, epochs, delta), by Node."""
    if shutil.which("node") is None:
        pytest.skip("needs Node")
    rule = page.split('<script id="rule">')[1].split("</script>")[0]
    ask = "const ask = ([n, r, e, d]) => { const k = stepsOf(e, r), f = enclosing(data, n, r, k, d); "
    ask += "return [k, f.lower, f.upper === Infinity ? null : f.upper, f.exact]; };"
    script = f"const data = {json.dumps(explorer.data_of(page))}; {rule} {ask} "
    script += f"console.log(JSON.stringify({json.dumps(settings)}.map(ask)))"
    done = subprocess.run(["node", "-"], input=script, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_the_page_of_the_docs_is_of_this_template_and_needs_no_network():
    page = PAGE.read_text()
    assert explorer.page_of(explorer.data_of(page)) == page
    assert len(page) < 400_000
    assert "http" not in page
    assert "src=" not in page


def test_answers_on_and_off_the_grid_hold_the_truth():
    page = PAGE.read_text()
    data = explorer.data_of(page)
    axes = [data[name] for name in ("noise", "rate", "epochs", "delta")]
    assert np.size(data["steps"]) == len(axes[1]) * len(axes[2])
    random = np.random.default_rng(3)
    on = [[float(random.choice(axis)) for axis in axes] for _ in range(6)]
    off = [[float(np.exp(random.uniform(*np.log([axis[0], axis[-1]])))) for axis in axes] for _ in range(12)]
    found = answers(page, on + off)
    finite = 0
    for (noise, rate, epochs, delta), (steps, lower, upper, exact) in zip(on + off, found, strict=True):
        assert steps == steps_of(epochs, rate)
        truth = ja.epsilon(ja.PoissonSubsampledGaussian(noise, rate), int(steps), delta)
        assert lower <= truth.upper
        assert upper is None or max(truth.lower, explorer.LEAST) <= upper
        finite += upper is not None
        if exact and upper is not None and lower > 0:
            assert upper <= 1.002 * truth.upper
    assert all(exact for *_, exact in found[:6])
    assert not any(exact for *_, exact in found[6:])
    assert finite > 12


def test_beyond_the_grid_nothing_is_known():
    page = PAGE.read_text()
    inside = [1.0, 0.01, 10.0, 1e-5]
    for place, value in ((0, 0.1), (1, 0.9), (2, 1e6), (3, 1e-12)):
        changed = [value if i == place else each for i, each in enumerate(inside)]
        assert answers(page, [changed])[0][2] is None
    assert answers(page, [[100.0, *inside[1:]]])[0][1] == 0
