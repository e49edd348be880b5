"""Neural collaborative filtering: what a user gives a movie, from what is learned of both."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int


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
