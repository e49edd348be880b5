"""A sweep that tests share, and whether two are the same."""

from jaxacct.sweep import grid

SETTINGS = grid(
    noise_multiplier=[0.0, 0.8, 1.0, 10.0], sampling_rate=[0.001, 0.01, 0.1], steps=[100, 10_000], delta=1e-5
)
QUIET = {"mode": "saddlepoint", "relation": "remove", "show_progress": False}


def same(one, other):
    return all(values.tobytes() == other.arrays[name].tobytes() for name, values in one.arrays.items())
