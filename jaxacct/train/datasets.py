"""The former place of data sets, now in :mod:`jaxacct_recipes`: it warns, and goes with the next minor version."""

import warnings

from jaxacct.train.users import bounded_contributions, mean_over_examples, users_as_examples
from jaxacct_recipes.datasets import LOADERS, Dataset, load

__all__ = ["LOADERS", "Dataset", "bounded_contributions", "load", "mean_over_examples", "users_as_examples"]

warnings.warn(
    "jaxacct.train.datasets goes with the next minor version: import LOADERS, Dataset and load from jaxacct_recipes, "
    "and users_as_examples, bounded_contributions and mean_over_examples from jaxacct.train.",
    DeprecationWarning,
    stacklevel=2,
)
