"""Recipes for :mod:`jaxacct.train`: public data sets, networks, adapters, and the settings that ``jaxacct train`` uses.

Examples, exhibits of papers and the command need these; a training on data and a model of one's own needs none of them.
"""

import jaxacct.train as _train  # noqa: F401  (it says what to install where a package is missing)
from jaxacct_recipes.datasets import LOADERS, Dataset, load
from jaxacct_recipes.low_rank import lora, merge_lora
from jaxacct_recipes.networks import MLP, Linear, PatchCNN
from jaxacct_recipes.recipes import RECIPES, Recipe, make_trainer, planned_epsilon

__all__ = [
    "LOADERS",
    "MLP",
    "RECIPES",
    "Dataset",
    "Linear",
    "PatchCNN",
    "Recipe",
    "load",
    "lora",
    "make_trainer",
    "merge_lora",
    "planned_epsilon",
]
