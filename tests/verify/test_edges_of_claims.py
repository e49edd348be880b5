"""Claims at the ends of what numbers can say: nothing is judged that was rounded, nothing refuted that overflowed."""

import json

import numpy as np
import pytest
from helpers.command_line import runner

import jaxacct as ja
from jaxacct import verify

LARGE = 2**53


@pytest.mark.parametrize(
    ("mechanism", "steps", "upper", "relation"),
    [
        (ja.PoissonSubsampledLaplace(1e-100, 0.5), 1, 0.8, "add"),
        (ja.Laplace(1e-100), 1, 1e106, "remove"),
        (ja.PoissonSubsampledLaplace(1e-300, 0.5), 3, 1e306, "add_or_remove"),
    ],
)
def test_what_overflowed_refutes_nothing(mechanism, steps, upper, relation):
    assert verify.epsilon(mechanism, steps, 0.0, (0.0, upper), relation=relation).status != "REFUTED"


def test_whole_numbers_are_judged_as_they_are():
    assert verify.epsilon(ja.PureDP(1.0), np.int64(LARGE + 1), 0.0, (float(LARGE), float(LARGE))).status == "REFUTED"
    assert verify.epsilon(ja.PureDP(LARGE + 1), 1, 0.0, (float(LARGE), float(LARGE))).status == "REFUTED"
    with pytest.raises(ValueError, match="no float64"):
        verify.epsilon(ja.PureDP(1.0), LARGE, 0.0, (LARGE + 1, LARGE + 1))
    with pytest.raises(TypeError, match="steps = True"):
        verify.epsilon(ja.PureDP(1.0), True, 0.0, (0.0, 1.0))
    with pytest.raises(TypeError, match=r"lower = '0\.'"):
        verify.epsilon(ja.PureDP(1.0), 1, 0.0, ("0.", "1."))


CLAIM = {"quantity": "epsilon", "delta": 1e-5, "lower": 0.0, "upper": 9.0, "steps": 1, "relation": "remove"}
PURE = {"type": "PureDP", "epsilon": 1.0}
HOSTILE = {
    "no rows": CLAIM | {"kind": "profile", "results": {}, "mechanism": PURE},
    "deep": "[" * 100_000,
    "no count": CLAIM | {"steps": None, "mechanism": PURE},
    "a count without end": json.dumps(CLAIM | {"mechanism": PURE}).replace('"steps": 1', '"steps": 1e999'),
    "a word": CLAIM | {"mechanism": "abc"},
    "nothing to compose": CLAIM | {"mechanism": [], "steps": []},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_claims_are_one_clear_error(case, tmp_path, capsys, monkeypatch):
    file = tmp_path / "claim.json"
    file.write_text(HOSTILE[case] if isinstance(HOSTILE[case], str) else json.dumps(HOSTILE[case]))
    done = runner(capsys, monkeypatch)("verify", str(file))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 2
