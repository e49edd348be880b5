"""DP-SGD training of Flax modules, in which a ledger of the privacy spent grants every step.

Reading order: :class:`.DPTrainer` (``trainer``, on ``loop``) is the whole; ``groups``, ``settings`` and ``planned``
turn a budget into a sampler, a policy and a ledger; ``step`` is one noisy update, made of ``sampling``, ``clipping``,
``noise`` and ``metrics``; ``checkpoints`` and ``saving`` keep a run on disk; ``report`` states its guarantee.
:class:`.PrivateGradients` (``own_loop``) is the same for a loop of one's own.

>>> from jaxacct import train
>>> train.PoissonSampler(num_examples=100, sampling_rate=0.5, capacity=101).mechanism(1.0).sampling_rate
0.5
"""

try:
    import flax as _flax  # noqa: F401
    import optax as _optax  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        'jaxacct.train, and audits of it, need flax, optax and orbax-checkpoint: pip install "jaxacct[train]"',
        name=missing.name,
    ) from missing


from jaxacct.train.averaging import adam_bc, averaged, averaged_model, averaging
from jaxacct.train.checkpoints import Checkpoints
from jaxacct.train.clipping import AdaptiveQuantile, Automatic, Flat, PerLayer
from jaxacct.train.datasets import Dataset, bounded_contributions, load, mean_over_examples, users_as_examples
from jaxacct.train.groups import Augmentation, Batches, Budget, Placement
from jaxacct.train.keys import run_key
from jaxacct.train.loop import ShortRunWarning
from jaxacct.train.metrics import Metrics
from jaxacct.train.models import (
    MLP,
    Linear,
    PatchCNN,
    accuracy,
    cross_entropy,
    lora,
    merge_lora,
    split_params,
    to_group_norm,
    unprotected_intermediates,
)
from jaxacct.train.noise import SparseVector
from jaxacct.train.own_loop import (
    PrivateGradients,
    PrivateState,
    add_noise,
    clip_and_sum,
    clipped_sum,
    make_private,
    privatize,
)
from jaxacct.train.planned import Plan, SideQuery
from jaxacct.train.recipes import RECIPES, Recipe, Tuned, make_trainer, planned_epsilon, tune
from jaxacct.train.report import Norms, build_report, certified_epsilon, guarantee, last_norms, observing, write_report
from jaxacct.train.sampling import (
    CyclicPoissonSampler,
    PoissonSampler,
    RandomAllocationSampler,
    TruncatedPoissonSampler,
    WithoutReplacementSampler,
)
from jaxacct.train.saving import export_inference, load_model, save_model
from jaxacct.train.sources import IndexedSource
from jaxacct.train.state import Evaluation, TrainState
from jaxacct.train.trainer import DPTrainer

__all__ = [
    "MLP",
    "RECIPES",
    "AdaptiveQuantile",
    "Augmentation",
    "Automatic",
    "Batches",
    "Budget",
    "Checkpoints",
    "CyclicPoissonSampler",
    "DPTrainer",
    "Dataset",
    "Evaluation",
    "Flat",
    "IndexedSource",
    "Linear",
    "Metrics",
    "Norms",
    "PatchCNN",
    "PerLayer",
    "Placement",
    "Plan",
    "PoissonSampler",
    "PrivateGradients",
    "PrivateState",
    "RandomAllocationSampler",
    "Recipe",
    "ShortRunWarning",
    "SideQuery",
    "SparseVector",
    "TrainState",
    "TruncatedPoissonSampler",
    "Tuned",
    "WithoutReplacementSampler",
    "accuracy",
    "adam_bc",
    "add_noise",
    "averaged",
    "averaged_model",
    "averaging",
    "bounded_contributions",
    "build_report",
    "certified_epsilon",
    "clip_and_sum",
    "clipped_sum",
    "cross_entropy",
    "export_inference",
    "guarantee",
    "last_norms",
    "load",
    "load_model",
    "lora",
    "make_private",
    "make_trainer",
    "mean_over_examples",
    "merge_lora",
    "observing",
    "planned_epsilon",
    "privatize",
    "run_key",
    "save_model",
    "split_params",
    "to_group_norm",
    "tune",
    "unprotected_intermediates",
    "users_as_examples",
    "write_report",
]
