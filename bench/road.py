"""The road from `ja.epsilon` to the transform, as it is walked: which files and functions a call enters.

    python -m bench.road            # counts, cold and warm, and the roads as JSON
    python -m bench.road --write    # the roads into docs/design/roads.md

A road is the stack of the package's functions where the last one, named in ROADS, is entered first. The calls are the
README's. Everything is imported before, and the platform's functions have been checked, as they are once in a process
(:mod:`jaxacct.numerics.elementary`); cold is the first call, which traces and compiles, and warm the second.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import jax

import jaxacct as ja

ROOT = pathlib.Path(ja.__file__).parents[1]
PACKAGE = os.fspath(ROOT / "jaxacct")

ROADS: dict[str, tuple[str, Callable[[Any], Any], tuple[str, str]]] = {
    "mesh": ("By the mesh:", lambda run: ja.prv.epsilon(run, 10_000, 1e-5), ("jaxacct/prv/evolving.py", "_multiply")),
    "atoms": (
        "By atoms on a contour:",
        lambda _: ja.epsilon(ja.Laplace(50.0), 3_000, 1e-6),
        ("jaxacct/saddlepoint/composer.py", "transform"),
    ),
    "contour": (
        "By the contour:",
        lambda run: ja.epsilon(run, 10_000, 1e-5),
        ("jaxacct/saddlepoint/contour.py", "line_at"),
    ),
    "calibration": (
        "From a budget to a setting, by the contour:",
        lambda _: ja.calibrate.noise_multiplier(1.0, 1e-5, 0.01, 10_000),
        ("jaxacct/saddlepoint/accountant.py", "decide"),
    ),
}
"""Title, call and end of each."""

WRAPPERS = ("scoped", "taking", "wrapper", "wrapped", "__call__", "inner", "alone", "decorated")
"""Names of functions that only pass on, as decorators make them: a reader of the road jumps over them."""


def walked(call: Callable[[], Any], end: tuple[str, str] | None = None) -> dict[str, Any]:
    """Returns how many files and functions of the package a call enters, how deep it goes, and the stack at ``end``."""
    entered: dict[tuple[str, str, int], None] = {}
    depth = most = 0
    road: list[tuple[str, str]] = []

    def named(frame: FrameType) -> tuple[str, str]:
        return os.path.relpath(frame.f_code.co_filename, ROOT), frame.f_code.co_name

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal depth, most, road
        if event not in ("call", "return") or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        if event == "return":
            depth -= 1
            return
        depth += 1
        most = max(most, depth)
        entered[(*named(frame), frame.f_code.co_firstlineno)] = None
        if end is not None and not road and named(frame) == end:
            above: FrameType | None = frame
            while above is not None:
                if above.f_code.co_filename.startswith(PACKAGE):
                    road.insert(0, named(above))
                above = above.f_back

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    files = list(dict.fromkeys(file for file, *_ in entered))
    road = [step for step in dict.fromkeys(road) if not step[1].startswith("<") and step[1] not in WRAPPERS]
    return {"files": len(files), "functions": len(entered), "depth": most, "entered": files, "road": road}


def measured() -> dict[str, Any]:
    """Returns the counts of each road, cold and warm, and the road."""
    jax.block_until_ready(jax.jit(lambda x: x + 1)(1.0))
    run = ja.PoissonSubsampledGaussian(noise_multiplier=1.0, sampling_rate=0.01)
    found = {}
    # The contour's first: it imports all that the top level does; calibrations import more.
    ja.epsilon(ja.Gaussian(1.0), 1, 1e-5)
    assert ja.calibrate.Status
    for name, (_, call, end) in ROADS.items():
        cold = walked(lambda call=call: call(run), end)
        if not cold["road"]:
            raise LookupError(f"the road {name!r} does not enter {end[1]} of {end[0]}: name where it ends now.")
        found[name] = {"cold": cold, "warm": walked(lambda call=call: call(run)), "road": cold["road"]}
    return found | {"training step": training_step()}


def training_step() -> dict[str, Any]:
    """Returns the counts of a step of :class:`jaxacct.train.DPTrainer`, traced and in ``fit``, and the road to noise.

    The trace is of :meth:`.DPTrainer.step`; the road is that of the first ``fit``, which compiles.
    """
    import jax.numpy as jnp
    import numpy as np
    import optax
    from flax import nnx

    from jaxacct.train import DPTrainer

    inputs = np.ones((100, 2), np.float32)
    model, end = nnx.Linear(2, 1, rngs=nnx.Rngs(0)), ("jaxacct/train/noise.py", "privatize_step")
    trainer = DPTrainer(
        model, lambda model, x: jnp.sum(model(x) ** 2), optax.sgd(0.1), (inputs,), epsilon=2.0, delta=1e-3, epochs=2,
        expected_batch_size=20, clip_norm=1.0, seed=0,
    )  # fmt: skip
    trace = walked(lambda: jax.eval_shape(trainer.step, trainer.state))
    fit = walked(lambda: trainer.fit(1), end)
    return {"trace": trace, "cold": fit, "warm": walked(lambda: trainer.fit(1)), "road": fit["road"]}


def as_text(road: list[tuple[str, str]]) -> str:
    """Returns a numbered list: a line for each stretch of the road within a file."""
    stretches: list[tuple[str, list[str]]] = []
    for file, name in road:
        if not stretches or stretches[-1][0] != file:
            stretches.append((file, []))
        stretches[-1][1].append(name)
    return "\n".join(
        f"{number}. `{file}`: {', '.join(f'`{name}`' for name in names)}"
        for number, (file, names) in enumerate(stretches, 1)
    )


def main() -> None:
    found = measured()
    if "--write" not in sys.argv:
        print(json.dumps(found))
        return
    page = ROOT / "docs" / "design" / "roads.md"
    text = page.read_text()
    for name, (title, _, _) in ROADS.items():
        pattern = re.compile(re.escape(title) + r"\n\n(?:\d+\. .*\n(?:   .*\n)*)+")
        assert pattern.search(text), f"{page} has no list after {title!r}"
        text = pattern.sub(lambda _, name=name, title=title: f"{title}\n\n{as_text(found[name]['road'])}\n", text)
    page.write_text(text)


if __name__ == "__main__":
    main()
