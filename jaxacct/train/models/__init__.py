"""Flax modules for the named data sets, the loss of one example, and measures of a trained module.

Modules take one example, without a batch axis, and are made of layers that Flax names (``nnx.Linear``, ``nnx.Conv``,
``nnx.Embed``, ``nnx.GroupNorm``, ``nnx.LayerNorm``). None of them mixes examples or keeps statistics of them.

>>> from flax import nnx
>>> MLP((123,), 2, width=16, rngs=nnx.Rngs(0)).hidden.kernel.shape
(123, 16)
"""

from jaxacct.train.models.convolution import PatchCNN, TwoConvolutions, convolve_by_patches, patches
from jaxacct.train.models.dense import MLP, Linear
from jaxacct.train.models.evaluation import accuracy, cross_entropy, root_mean_squared_error
from jaxacct.train.models.ratings import CollaborativeFilter
from jaxacct.train.models.residual import ResNet9
from jaxacct.train.models.text import PooledEmbedding

__all__ = [
    "MLP",
    "CollaborativeFilter",
    "Linear",
    "PatchCNN",
    "PooledEmbedding",
    "ResNet9",
    "TwoConvolutions",
    "accuracy",
    "convolve_by_patches",
    "cross_entropy",
    "patches",
    "root_mean_squared_error",
]
