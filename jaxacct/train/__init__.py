"""A Flax DP-SGD trainer that asks the accountant for every step.

>>> from jaxacct import train
>>> train.PoissonSampler(num_examples=100, sampling_rate=0.5, capacity=101).mechanism(1.0).sampling_rate
0.5
"""

from jaxacct.train.accounting import certified_epsilon, guarantee
from jaxacct.train.clipping import clipped_sum
from jaxacct.train.data import Dataset, load
from jaxacct.train.keys import run_key
from jaxacct.train.models import MLP, Linear, PatchCNN, accuracy, cross_entropy
from jaxacct.train.noise import privatize
from jaxacct.train.recipes import RECIPES, Recipe, make_trainer
from jaxacct.train.report import build_report, write_report
from jaxacct.train.sampling import PoissonSampler
from jaxacct.train.state import Evaluation, TrainState
from jaxacct.train.trainer import DPTrainer

__all__ = [
    "MLP",
    "RECIPES",
    "DPTrainer",
    "Dataset",
    "Evaluation",
    "Linear",
    "PatchCNN",
    "PoissonSampler",
    "Recipe",
    "TrainState",
    "accuracy",
    "build_report",
    "certified_epsilon",
    "clipped_sum",
    "cross_entropy",
    "guarantee",
    "load",
    "make_trainer",
    "privatize",
    "run_key",
    "write_report",
]
