"""The networks of Bu et al. (2020) for reviews and for ratings, and what ratings are measured by."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float, Int

from jaxacct.train.models import outputs


class PooledEmbedding(nnx.Module):
    """The network of Bu et al. (2020), section 4.1, for reviews: embeddings of ``width``, their mean, ``width`` units.

    The mean runs over all words of the fixed length, those that fill it up included, as global average pooling does in
    the paper. The word number 0, which fills up, has an embedding that trains like the others.

    >>> PooledEmbedding(50, 2, rngs=nnx.Rngs(0))(jnp.zeros(7, jnp.int32)).shape
    (2,)
    """

    def __init__(self, vocabulary: int, num_classes: int, *, width: int = 16, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Embed(vocabulary, width, rngs=rngs)
        self.hidden = nnx.Linear(width, width, rngs=rngs)
        self.output = nnx.Linear(width, num_classes, rngs=rngs)

    def __call__(self, words: Int[Array, " length"]) -> Float[Array, " classes"]:
        return self.output(nnx.relu(self.hidden(self.embedding(words).mean(axis=0))))


class CollaborativeFilter(nnx.Module):
    """The network of Bu et al. (2020), section 4.1, for ratings, a simplified one of He et al. (2017).

    One branch multiplies a user's and a movie's ``factors`` (generalized matrix factorization); the other has
    ``branch_factors`` for each; all are joined and feed one linear layer.

    The outputs are one number for each star.

    >>> nnx.eval_shape(lambda: CollaborativeFilter(10, 20, 5, rngs=nnx.Rngs(0))(jnp.array([9, 19]))).shape
    (5,)
    """

    def __init__(
        self,
        users: int,
        movies: int,
        num_classes: int,
        *,
        factors: int = 5,
        branch_factors: int = 10,
        rngs: nnx.Rngs,
    ) -> None:
        self.user_factors = nnx.Embed(users, factors, rngs=rngs)
        self.movie_factors = nnx.Embed(movies, factors, rngs=rngs)
        self.user_branch = nnx.Embed(users, branch_factors, rngs=rngs)
        self.movie_branch = nnx.Embed(movies, branch_factors, rngs=rngs)
        self.output = nnx.Linear(factors + 2 * branch_factors, num_classes, rngs=rngs)

    def __call__(self, pair: Int[Array, " 2"]) -> Float[Array, " classes"]:
        user, movie = pair[0], pair[1]
        joined = (self.user_factors(user) * self.movie_factors(movie), self.user_branch(user), self.movie_branch(movie))
        return self.output(jnp.concatenate(joined))


def root_mean_squared_error(model: nnx.Module, inputs: ArrayLike, labels: ArrayLike) -> float:
    """Returns the root mean squared error of the expected class, for classes that are steps of a scale (stars).

    The module's outputs are taken as log-probabilities up to a constant; the mean of that distribution is the
    prediction that has the least squared error under it. Labels count from 0, which shifts both and changes nothing.

    For data that is not private, such as a public test set: no noise is added.

    >>> from jaxacct_recipes.networks import Linear
    >>> model = Linear((2,), 5, rngs=nnx.Rngs(0))
    >>> round(root_mean_squared_error(model, jnp.zeros((2, 2)), jnp.array([2, 4])), 4)
    1.4142
    """
    probabilities = jax.nn.softmax(outputs(model, inputs))
    expected = probabilities @ jnp.arange(probabilities.shape[-1], dtype=probabilities.dtype)
    return float(jnp.sqrt(jnp.mean(jnp.square(expected - jnp.asarray(labels).astype(expected.dtype)))))
