"""DP-SGD training of Flax modules, in which a ledger of the privacy spent grants every step.

Reading order: :class:`.DPTrainer` (``trainer``) is the whole; ``config`` and ``planned`` turn a configuration, such as
:class:`.PlannedRun`, into a sampler, a policy and a ledger; ``step`` is one noisy update, made of ``sampling``,
``clipping``, ``noise`` and ``metrics``; ``checkpoints`` and ``saving`` keep a run on disk; ``report`` states its
guarantee. :class:`.PrivateGradients` (``gradients``) is the same for a loop of one's own.

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


from jaxacct.train.checkpoints import Checkpoints
from jaxacct.train.clipping import AdaptiveQuantile, Automatic, Flat, PerLayer
from jaxacct.train.config import FilteredRun, MenuRun, OpenRun, PlannedRun
from jaxacct.train.gradients import PrivateGradients
from jaxacct.train.integer_noise import noise_delta
from jaxacct.train.keys import run_key
from jaxacct.train.metrics import Metrics
from jaxacct.train.models import (
    accuracy,
    cross_entropy,
    split_params,
    to_group_norm,
    unprotected_intermediates,
)
from jaxacct.train.noise import SparseVector
from jaxacct.train.optimizers import Norms, adam_bc, averaged, averaged_model, averaging, last_norms, observing
from jaxacct.train.planned import Plan, SideQuery
from jaxacct.train.progress import Evaluation, ShortRunWarning
from jaxacct.train.report import build_report, certified_epsilon, guarantee, write_report
from jaxacct.train.sampling import (
    BallsInBinsSampler,
    CyclicPoissonSampler,
    PoissonSampler,
    RandomAllocationSampler,
    ShuffledSampler,
    TruncatedPoissonSampler,
    WithoutReplacementSampler,
)
from jaxacct.train.saving import export_inference, load_model, save_model
from jaxacct.train.sources import IndexedSource
from jaxacct.train.state import PrivateState, TrainState
from jaxacct.train.trainer import DPTrainer
from jaxacct.train.tuning import Tuned, tune
from jaxacct.train.users import bounded_contributions, mean_over_examples, users_as_examples

__all__ = [
    "AdaptiveQuantile",
    "Automatic",
    "BallsInBinsSampler",
    "Checkpoints",
    "CyclicPoissonSampler",
    "DPTrainer",
    "Evaluation",
    "FilteredRun",
    "Flat",
    "IndexedSource",
    "MenuRun",
    "Metrics",
    "Norms",
    "OpenRun",
    "PerLayer",
    "Plan",
    "PlannedRun",
    "PoissonSampler",
    "PrivateGradients",
    "PrivateState",
    "RandomAllocationSampler",
    "ShortRunWarning",
    "ShuffledSampler",
    "SideQuery",
    "SparseVector",
    "TrainState",
    "TruncatedPoissonSampler",
    "Tuned",
    "WithoutReplacementSampler",
    "accuracy",
    "adam_bc",
    "averaged",
    "averaged_model",
    "averaging",
    "bounded_contributions",
    "build_report",
    "certified_epsilon",
    "cross_entropy",
    "export_inference",
    "guarantee",
    "last_norms",
    "load_model",
    "mean_over_examples",
    "noise_delta",
    "observing",
    "run_key",
    "save_model",
    "split_params",
    "to_group_norm",
    "tune",
    "unprotected_intermediates",
    "users_as_examples",
    "write_report",
]


def __dir__() -> list[str]:
    """Returns the names that are meant to be used; files of this folder are attributes as well."""
    return __all__
