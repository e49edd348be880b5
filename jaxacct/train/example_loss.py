"""The loss of one example as clipping sees it: a function of the parameters, the example, and one key.

All that is random in it (dropout, augmentation, what the loss draws itself) comes from that key, which the run's key,
the step and the example's index determine. So with the run's key fixed, an example's gradient depends on that example
and the parameters alone: neither on who else is in the batch nor on its row there, which devices and microbatches
change. Clipping then bounds the sensitivity whatever is drawn, and a guarantee that holds for every value of keys drawn
apart from the data, sampling and noise holds for their mixture. The keys have a purpose of their own below the run's:
a loss that gave its key away would tell nothing of what the noise is made of.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import errors, nnx
from jaxtyping import Array, PyTree

from jaxacct.train.groups import Augmentation
from jaxacct.train.keys import run_key
from jaxacct.train.modules import merged

AUGMENT, LOSS, STREAMS = range(3)
"""What the keys of a view are for."""


@dataclass(frozen=True)
class ExampleLoss:
    """The mean loss of an example's views, whose gradient is the mean of theirs.

    Attributes:
        loss: ``loss(model, *example)``, or ``loss(model, *example, key=...)``.
        graph: the module's structure.
        takes_key: whether ``loss`` wants a key.
        has_streams: whether the module keeps random streams (``nnx.Dropout``, ``nnx.RNN``); each gets a key of its own.
        augmentation: how many views, and what makes them.
    """

    loss: Callable[..., Array]
    graph: Any
    takes_key: bool
    has_streams: bool
    augmentation: Augmentation

    @classmethod
    def of(
        cls, loss: Callable[..., Array], graph: Any, params: PyTree, constants: PyTree, example: tuple[Any, ...],
        augmentation: Augmentation,
    ) -> ExampleLoss:  # fmt: skip
        """Returns the loss, once it is known to work on one example of these shapes and dtypes.

        Raises:
            TypeError: the loss's signature leaves open whether it wants a key; an augmentation that gives no tuple.
            ValueError: its value is no real scalar; several views of an example that are all the same; it writes into
                the module where Flax does not allow that.
        """
        variables = jax.tree.leaves(constants, is_leaf=_is_variable)
        has_streams = any(isinstance(variable, nnx.RngKey) for variable in variables)
        made = cls(loss, graph, takes_key(loss, len(example)), has_streams, augmentation)
        if augmentation.views > 1 and not made.random:
            raise ValueError(
                f"views = {augmentation.views} of each example are all the same: give augment, or a loss or module "
                "that draws at random."
            )
        try:
            value = jax.eval_shape(made, params, constants, example, run_key(0))
        except errors.TraceContextError as error:
            raise ValueError(
                "loss writes into a module (a counter, a stream of nnx.Dropout) inside a transformation of plain JAX, "
                "or into a module other than its argument. Flax has its own transformations for that: nnx.remat, "
                "nnx.vmap, nnx.scan, nnx.jit."
            ) from error
        except ValueError as error:
            if "deterministic" in str(error):
                error.add_note(
                    "The module has to know whether it trains: call model.train() before the trainer is made."
                )
            raise
        check_one_number(value, "loss", floating=True)
        return made

    @property
    def random(self) -> bool:
        """Whether it needs a key."""
        return self.takes_key or self.has_streams or self.augmentation.augment is not None

    def __call__(
        self, params: PyTree, constants: PyTree, example: tuple[Any, ...], key: jax.Array | None = None
    ) -> Array:
        """Returns the loss of one example. ``key``: its own of this step; not needed unless :attr:`random`."""
        if not self.random:
            return self.loss(merged(self.graph, params, constants), *example)
        assert key is not None
        keys = jax.random.split(key, (self.augmentation.views, 3))
        one = lambda keys: self._of_view(params, constants, example, keys)  # noqa: E731
        return one(keys[0]) if self.augmentation.views == 1 else jnp.mean(jax.vmap(one)(keys))

    def _of_view(self, params: PyTree, constants: PyTree, example: tuple[Any, ...], keys: jax.Array) -> Array:
        if self.augmentation.augment is not None:
            example = self.augmentation.augment(keys[AUGMENT], example)
            if not isinstance(example, tuple):
                raise TypeError(f"augment returned a {type(example).__name__}: it must return the example, a tuple.")
        if self.has_streams:
            constants = reseeded(constants, keys[STREAMS])
        more = {"key": keys[LOSS]} if self.takes_key else {}
        return self.loss(merged(self.graph, params, constants), *example, **more)


def check_one_number(value: Any, source: str, *, floating: bool = False) -> None:
    """Raises ValueError where what ``source`` returned for one example, or the shape of that, is not one number.

    >>> check_one_number(True, "correct")
    """
    shape = () if isinstance(value, (bool, int, float)) else getattr(value, "shape", None)
    if shape != () or (floating and not jnp.issubdtype(value.dtype, jnp.floating)):
        found = repr(value) if shape is None else f"an array of shape {shape} and dtype {value.dtype}"
        raise ValueError(
            f"{source} returned {found} for one example, which has no batch axis and is to count once: return a "
            f"{'floating-point ' * floating}scalar, such as an entry, a sum or a mean."
        )


def takes_key(loss: Callable[..., Any], parts: int) -> bool:
    """Returns whether ``loss(model, *example)`` wants a key as well: whether its signature names one.

    Args:
        loss: any callable.
        parts: of an example.

    Raises TypeError where the signature leaves it open.

    >>> takes_key(lambda model, x, y: 0.0, 2), takes_key(lambda model, x, *, key: 0.0, 1)
    (False, True)
    """
    try:
        signature = inspect.signature(loss)
    except (TypeError, ValueError):  # of some built-in callables
        return False
    parameters = signature.parameters
    key = parameters.get("key")
    if key is None or key.kind not in (key.KEYWORD_ONLY, key.POSITIONAL_OR_KEYWORD):
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            raise TypeError(
                f"loss = {signature} takes any keyword, and does not tell whether it wants a random key: name key "
                "there, or leave ** out."
            )
        return False
    if key.kind is key.POSITIONAL_OR_KEYWORD and list(parameters).index("key") <= parts:
        raise TypeError(
            f"loss = {signature} takes a part of the example as key, the name of a random key: give it another name."
        )
    if key.default is not key.empty and key.default is not None:
        raise TypeError(
            f"loss = {signature} has a key already: leave it without a value, to get one for each example, or give "
            "it another name."
        )
    return True


def reseeded(constants: PyTree, key: jax.Array) -> PyTree:
    """Returns the state with new keys for its random streams, one each; of new ones from it nothing else differs.

    >>> rngs = nnx.Rngs(dropout=0, noise=0)
    >>> keys = nnx.state(rngs, nnx.RngKey)
    >>> new = reseeded(keys, jax.random.key(1))
    >>> len({str(jax.random.key_data(leaf)) for leaf in [*jax.tree.leaves(keys), *jax.tree.leaves(new)]})
    3
    """
    number = itertools.count()

    def new(variable: Any) -> Any:
        if not isinstance(variable, nnx.RngKey):
            return variable
        own = jax.random.fold_in(key, next(number))
        # Layers that are stacked, to be scanned over, have keys that are stacked.
        return variable.replace(jax.random.split(own, variable.shape) if variable.shape else own)

    return jax.tree.map(new, constants, is_leaf=_is_variable)


def _is_variable(leaf: Any) -> bool:
    return isinstance(leaf, nnx.Variable)
