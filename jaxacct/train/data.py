"""The old place of :mod:`jaxacct.train.datasets`."""

from jaxacct.train.datasets import Dataset, load

__all__ = ["Dataset", "load"]
