"""The page for those who come from other libraries: each block of code runs where its library is installed."""

import pathlib
import re

import pytest

import jaxacct as ja

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "coming-from.md"

PACKAGES = {
    "dp-accounting": "dp_accounting",
    "Opacus": "opacus",
    "prv-accountant": "prv_accountant",
    "TensorFlow Privacy": "tensorflow_privacy",
    "jax-privacy": "jax_privacy",
}


def blocks():
    """The code of the page, by the heading that it stands under; what stands above the first comes before each."""
    first, *sections = re.split(r"^## ", PAGE.read_text(), flags=re.M)
    common = "".join(re.findall(r"^```python\n(.*?)^```", first, re.M | re.S))
    for section in sections:
        code = "".join(re.findall(r"^```python\n(.*?)^```", section, re.M | re.S))
        if code:
            yield section.splitlines()[0], common + code


def test_every_library_that_can_be_run_has_code():
    assert [name for name, _ in blocks()] == list(PACKAGES)


@pytest.mark.parametrize(("name", "code"), list(blocks()), ids=[name for name, _ in blocks()])
def test_what_is_shown_runs(name, code):
    pytest.importorskip(PACKAGES[name], exc_type=ImportError)
    exec(compile(code, f"{PAGE.name}: {name}", "exec"), {})


@pytest.mark.parametrize("noise", [0.8, 1.1])
def test_functions_of_other_libraries_are_the_verb_of_what_they_describe(noise):
    found = ja.adapters.compute_dp_sgd_privacy(65_536, 256, noise, 1.5, 1e-5)
    assert found == ja.epsilon(ja.PoissonSubsampledGaussian(noise, 2.0**-8), 384, 1e-5)
    found = ja.adapters.flower_privacy(noise, num_sampled_clients=64, num_clients=1024, rounds=10, delta=1e-5)
    assert found == ja.epsilon(ja.GaussianWithoutReplacement(noise, 0.0625), 10, 1e-5, relation="replace")
