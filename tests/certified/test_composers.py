"""Composers of laws that are arrays, beside frozen brackets of all mechanisms, and beside one another."""

import numpy as np
import pytest
from helpers.thorough import draws

from bench import composers, frozen


@pytest.mark.exhaustive
def test_both_composers_agree_with_frozen_brackets_of_all_mechanisms():
    """Each mechanism compiles its law alone, so all of them are asked; blocks of ranges take seconds a call."""
    every = [
        record
        for record in frozen.sample(frozen.load(), draws(200, 2000), seed=11)
        if record[0].verb in composers.VERBS and "ExponentialMechanism" not in record[0].family
    ]
    answered = 0
    for setting, old in every:
        by_contour, by_mesh = composers.contour(setting), composers.evolving(setting)
        if by_contour is None or old.raised:
            continue
        answered += 1
        low, high = float(np.squeeze(old.lower)), float(np.squeeze(old.upper))
        for bounds in (by_contour, by_mesh):
            assert bounds.lower <= high, setting
            assert bounds.upper >= low, setting
        assert by_contour.lower <= by_mesh.upper, setting
        assert by_mesh.lower <= by_contour.upper, setting
    assert answered > 60
