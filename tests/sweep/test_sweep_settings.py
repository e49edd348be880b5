"""Grids, rows and ranges: what is swept over, and what is refused."""

import numpy as np
import pytest

import jaxacct as ja
from jaxacct.sweep import grid, rows
from jaxacct.sweep.description import parsed, quantity_of

AXES = {"noise_multiplier": [0.5, 1.0, 2.0], "sampling_rate": [0.01, 0.02], "steps": 1000, "delta": 1e-5}


def test_a_grid_is_the_product_of_its_axes_the_last_moving_fastest():
    settings = grid(**AXES)
    columns = settings.columns(np.arange(settings.size))
    want = np.meshgrid(AXES["noise_multiplier"], AXES["sampling_rate"], indexing="ij")
    np.testing.assert_array_equal(columns["noise_multiplier"], want[0].ravel())
    np.testing.assert_array_equal(columns["sampling_rate"], want[1].ravel())
    np.testing.assert_array_equal(columns["steps"], np.full(6, 1000.0))
    assert settings.shape == (3, 2)
    assert list(settings.axes) == ["noise_multiplier", "sampling_rate"]
    assert settings.constants == {"steps": 1000.0, "delta": 1e-5}


def test_rows_go_together():
    settings = rows(noise_multiplier=[1.0, 2.0], sampling_rate=[0.1, 0.2], steps=[10, 20], delta=1e-5)
    columns = settings.columns(np.array([1]))
    assert {name: column.tolist() for name, column in columns.items()} == {
        "noise_multiplier": [2.0], "sampling_rate": [0.2], "steps": [20.0], "delta": [1e-5],
    }  # fmt: skip


def test_columns_in_a_file_stay_there_and_are_all_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(ja.sweep.description, "STRETCH", 2)
    np.save(tmp_path / "noise.npy", [1.0, 2.0, 3.0, 4.0, -5.0])
    settings = rows(
        noise_multiplier=ja.sweep.read_values(tmp_path / "noise.npy"), sampling_rate=0.1, steps=1, delta=0.1
    )
    assert isinstance(settings.values["noise_multiplier"], np.memmap)
    with pytest.raises(ValueError, match=r"noise_multiplier = -5"):
        quantity_of("epsilon", "saddlepoint", "add_or_remove", None).check(settings)
    copied = rows(**{name: value * 1.0 for name, value in settings.values.items()})
    assert copied.digest() == settings.digest()


def test_several_mechanisms_are_an_axis():
    settings = grid([ja.PoissonSubsampledGaussian, ja.GaussianWithoutReplacement], **AXES)
    assert settings.shape == (2, 3, 2)
    assert settings.axes["mechanism"].tolist() == ["PoissonSubsampledGaussian", "GaussianWithoutReplacement"]


def test_the_digest_tells_any_two_settings_apart():
    changed = [AXES | {"steps": 1001}, AXES | {"noise_multiplier": [0.5, 1.0, np.nextafter(2.0, 3.0)]}]
    assert len({grid(**axes).digest() for axes in [AXES, *changed]}) == 3
    assert grid(**AXES).digest() == grid(**AXES).digest()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"noise_multiplier": [1.0, -1.0]}, ["noise_multiplier", "-1"]),
        ({"sampling_rate": [0.01, 1.5]}, ["sampling_rate", "1.5", "fraction"]),
        ({"steps": [10, 2.5]}, ["steps", "2.5", "whole"]),
        ({"delta": [1e-5, 2.0]}, ["delta", "(0, 1)"]),
        ({"delta": float("nan")}, ["delta", "nan"]),
        ({"scale": 1.0}, ["scale", "not used"]),
        ({"epsilon": 1.0}, ["epsilon", "not used"]),
    ],
)
def test_bad_values_are_named_before_anything_is_computed(change, words):
    with pytest.raises(ValueError) as caught:
        quantity_of("epsilon", "saddlepoint", "add_or_remove", None).check(grid(**AXES | change))
    assert all(word in str(caught.value) for word in words), caught.value


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match="sampling_rate missing"):
        ja.sweep.epsilon(grid(noise_multiplier=1.0, steps=10, delta=1e-5))
    with pytest.raises(ValueError, match="epsilon missing"):
        ja.sweep.delta(grid(noise_multiplier=1.0, sampling_rate=0.1, steps=10))
    with pytest.raises(ValueError, match="noise_multiplier not used"):
        ja.sweep.noise_multiplier(grid(epsilon=1.0, **AXES))


def test_other_arguments_are_checked():
    with pytest.raises(ValueError, match="mode = 'fast'"):
        ja.sweep.epsilon(grid(**AXES), mode="fast")
    with pytest.raises(ValueError, match="relation = 'swap'"):
        ja.sweep.epsilon(grid(**AXES), relation="swap")
    with pytest.raises(ValueError, match="chunk = 0"):
        ja.sweep.epsilon(grid(**AXES), chunk=0)
    with pytest.raises(ValueError, match="mechanism"):
        grid("Gaussian", **AXES)
    with pytest.raises(ValueError, match="ApproximateDP has a field delta"):
        ja.sweep.epsilon(grid(ja.ApproximateDP, epsilon=0.1, delta=1e-6, steps=10))
    with pytest.raises(ValueError, match="columns of one length"):
        rows(noise_multiplier=[1.0, 2.0], sampling_rate=[0.1, 0.2, 0.3], steps=1, delta=1e-5)
    with pytest.raises(ValueError, match="at least one"):
        grid(**AXES | {"steps": []})


def test_ranges():
    assert parsed("0.01", "x") == 0.01
    assert parsed("1,2,4", "x").tolist() == [1.0, 2.0, 4.0]
    assert parsed("0:1:5", "x").tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    logarithmic = parsed("1e-4:0.1:4:log", "x")
    np.testing.assert_allclose(logarithmic, [1e-4, 1e-3, 1e-2, 1e-1], rtol=1e-14)
    assert (logarithmic[0], logarithmic[-1]) == (1e-4, 0.1)
    assert parsed("1:4:7:log", "steps", integers=True).tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("many", ["not understood", "LOW:HIGH:COUNT"]),
        ("1:2", ["not understood"]),
        ("1:2:3.5", ["not understood"]),
        ("", ["not understood"]),
        ("1,,2", ["not understood"]),
        ("2:1:5", ["rises"]),
        ("1:inf:5", ["rises"]),
        ("1:2:1", ["at least 2"]),
        ("0:2:5:log", ["above 0"]),
        ("1:2:5:cubic", ["'cubic'"]),
        ("1:2:5:log:log", ["'log:log'"]),
    ],
)
def test_ranges_that_are_none(text, words):
    with pytest.raises(ValueError) as caught:
        parsed(text, "noise_multiplier")
    assert all(word in str(caught.value) for word in ["noise_multiplier", repr(text), *words]), caught.value
