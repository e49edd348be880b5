"""By what a run is known again: its public settings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import jax
import numpy as np
from flax import nnx

from jaxacct.train.keys import ENTROPY
from jaxacct.train.layout import name_of
from jaxacct.train.leaves import arrays_of, described, digest
from jaxacct.train.sampling.correlated import Correlated, drawn_by

if TYPE_CHECKING:  # a trainer's processes compare theirs
    from jaxacct.train.trainer import DPTrainer

FIRST = 32
"""Steps by which a stream of noise is known again that tells no numbers."""

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""Where a function lies in memory, which its printed form tells and which is another in each process."""


def fingerprint(trainer: DPTrainer) -> dict[str, str]:
    """Returns what must be the same for a run to be continued by ``trainer``, by name.

    Of the data only the size and the shape of an example, of the loss nothing, of functions in a policy their names,
    of frozen parameters, which are public, a digest, and of the optimizer the shapes of its state: the learning rate
    may change. A digest of the examples would be a
    statement on private data.

    >>> import numpy as np, optax
    >>> from flax import nnx
    >>> from jaxacct.train import DPTrainer
    >>> trainer = DPTrainer(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), lambda m, x: m(x)[0], optax.sgd(0.1),
    ...                     (np.ones((50, 2), np.float32),), epsilon=2.0, delta=1e-3, noise_multiplier=3.0,
    ...                     expected_batch_size=10, clip_norm=1.0, seed=0)
    >>> fingerprint(trainer)["clipping"], fingerprint(trainer)["parameters kernel"]
    ('Flat(clip_norm=1.0)', 'float32 (2, 1)')
    """
    entries = {
        "examples": trainer.sampler.num_examples,  # the public number
        "an example": ", ".join(described(part) for part in jax.tree.leaves(trainer.source.example)),
        "epsilon": trainer.epsilon,
        "delta": trainer.delta,
        "ledger": trainer.ledger_kind,
        "policy": trainer.policy,
        "sampler": drawn_by(trainer.sampler),
        "clipping": trainer.clipping,
        "metrics": trainer.program.metrics,
        "seed": _seed(trainer),
    }
    if isinstance(trainer.sampler, Correlated):
        numbers = [leaf for leaf in jax.tree.leaves(trainer.noise) if isinstance(leaf, np.ndarray)]
        if not numbers and trainer.noise is not None:  # another library's: by what it makes of the first steps
            first = np.eye(min(trainer.sampler.steps, FIRST))
            numbers = [np.asarray(jax.jit(trainer.noise.solve)(first), np.float32).round(4) + 0.0]
        entries["noise"] = f"{trainer.sampler.noise}, {digest(arrays_of(numbers))[:16]}"
    if trainer.menu is not None:
        entries["menu"] = trainer.menu.fingerprint()
    if trainer.plan is not None:
        entries["planned steps"] = trainer.plan.steps
        entries["beside the steps"] = trainer.plan.queries
    if frozen := arrays_of(nnx.filter_state(trainer.constants, nnx.Param)):
        entries["frozen parameters"] = digest(frozen)[:16]
    parts = {"parameters": trainer.state.params, "frozen": trainer.constants, "optimizer": trainer.state.opt_state}
    for name, tree in parts.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            entries[f"{name} {name_of(path)}"] = described(leaf)
    return {name: ADDRESS.sub("", str(value)) for name, value in entries.items()}


def _seed(trainer: DPTrainer) -> str:
    if not isinstance(trainer.seed, str) or trainer.seed == ENTROPY:
        return str(trainer.seed)
    return f"{trainer.seed}, {digest(arrays_of(trainer.state.key))[:16]}"
