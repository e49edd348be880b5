"""A bag of words: embedded, averaged, one hidden layer."""

from __future__ import annotations

from flax import nnx
from jaxtyping import Array, Float, Int


class PooledEmbedding(nnx.Module):
    """The network of Bu et al. (2020), section 4.1, for reviews: embeddings of ``width``, their mean, ``width`` units.

    The mean runs over all words of the fixed length, those that fill it up included, as global average pooling does in
    the paper. The word number 0, which fills up, has an embedding that trains like the others.

    >>> import jax.numpy as jnp
    >>> PooledEmbedding(50, 2, rngs=nnx.Rngs(0))(jnp.zeros(7, jnp.int32)).shape
    (2,)
    """

    def __init__(self, vocabulary: int, num_classes: int, *, width: int = 16, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Embed(vocabulary, width, rngs=rngs)
        self.hidden = nnx.Linear(width, width, rngs=rngs)
        self.output = nnx.Linear(width, num_classes, rngs=rngs)

    def __call__(self, words: Int[Array, " length"]) -> Float[Array, " classes"]:
        return self.output(nnx.relu(self.hidden(self.embedding(words).mean(axis=0))))
