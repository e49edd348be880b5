"""Flax modules under DP-SGD: what may be trained, and the loss of one example.

Modules take one example, without a batch axis. Their losses' gradients are clipped example by example, so no layer may
mix examples or keep statistics of them.

* :func:`cross_entropy`, :func:`accuracy`: a classifier's loss of one example, and its accuracy on public ones;
* :func:`check_module`, :func:`split_params`: modules that can be trained, and the parameters of one that are;
* :func:`unprotected_intermediates`: what a module sows, without a guarantee;
* :class:`ExampleLoss`: the loss whose gradients are clipped, with all its randomness from one key;
* :func:`to_group_norm`: group normalization in the place of batch normalization.

>>> graph, trained, rest = split_params(nnx.Linear(123, 2, rngs=nnx.Rngs(0)), "kernel")
>>> [leaf.shape for leaf in jax.tree.leaves(trained)]
[(123, 2)]
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import errors, nnx
from jaxtyping import Array, ArrayLike, Float, PyTree

from jaxacct.numerics.pytrees import takes_python_values
from jaxacct.train.keys import run_key
from jaxacct.train.ownership import copy_tree, fresh


def cross_entropy(model: Any, example: Array, label: Array) -> Float[Array, ""]:
    """Returns the negative log-likelihood of one labelled example, in nats.

    >>> round(float(cross_entropy(lambda x: x, jnp.zeros(2), 1)), 4)
    0.6931
    """
    return -jax.nn.log_softmax(model(example))[label]


def accuracy(model: nnx.Module, inputs: ArrayLike, labels: ArrayLike) -> float:
    """Returns the share of examples whose largest output is their label.

    For data that is not private, such as a public test set: no noise is added.

    >>> model = nnx.Linear(2, 2, kernel_init=nnx.initializers.zeros, rngs=nnx.Rngs(0))
    >>> accuracy(model, jnp.zeros((4, 2)), jnp.array([0, 0, 0, 1]))
    0.75
    """
    right = outputs(model, inputs).argmax(axis=-1) == jnp.asarray(labels)
    return float(jnp.mean(right.astype(jnp.float32)))


def outputs(model: nnx.Module, inputs: ArrayLike) -> Float[Array, "examples classes"]:
    """Returns a module's outputs of many examples, some at a time, as it is in evaluation: without dropout.

    >>> outputs(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), jnp.zeros((4, 2))).shape
    (4, 3)
    """
    graph, state = nnx.split(model)
    return _run(graph, state, jnp.asarray(inputs))


@functools.partial(jax.jit, static_argnames="graph")
def _run(graph: Any, state: Any, inputs: Array) -> Array:
    """Returns the outputs of a module in evaluation, in a loop over batches that has no state but memory for one."""

    def one(row: Array) -> Array:
        model = nnx.merge(graph, fresh(state))  # made within the traced function: what it writes is dropped
        model.eval()
        return model(row)

    return jax.lax.map(one, inputs, batch_size=1000)  # examples at a time: bounds the memory, changes no result


# ----------------------------------------------------------------------------------------------------
# Trainable modules: those that DP-SGD can train, those that it cannot and why, and which parameters it trains.
#
# Fine-tuning trains some parameters and leaves the others as they are. Only the trained ones have gradients: those
# alone are clipped and get noise, so that fewer of them mean less noise in all. The frozen ones are released as they
# are: they have to come from public data.
# ----------------------------------------------------------------------------------------------------

Path = tuple[Any, ...]
"""Path of a parameter: the names on the way to it."""

Trainable = str | Sequence[str] | Callable[[Path, Any], bool] | None
"""Choice of parameters: paths written ``"output"`` or ``"blocks/0"``, a predicate of a parameter's path and variable,
or None: all, or all adapters."""


def check_module(model: nnx.Module) -> None:
    """Raises where ``model`` cannot be trained by per-example gradients.

    Raises:
        TypeError: not a Flax ``nnx`` module.
        ValueError: it holds BatchNorm or other running statistics that are not frozen, or SpectralNorm.

    >>> check_module(nnx.BatchNorm(2, use_running_average=True, rngs=nnx.Rngs(0)))
    >>> check_module(nnx.BatchNorm(2, rngs=nnx.Rngs(0)))
    Traceback (most recent call last):
        ...
    ValueError: model has nnx.BatchNorm at the top: it mixes the examples of a batch, ...
    """
    if not isinstance(model, nnx.Module):
        raise TypeError(f"model is a {type(model).__name__}: give a flax.nnx module.")
    frozen: set[int] = set()
    # First the modules: batch normalization is accepted only where its averages are frozen, and those are remembered.
    # Then the variables: any other running statistics would be made from private data.
    for path, module in nnx.iter_modules(model):
        if not isinstance(module, nnx.BatchNorm):
            continue
        if not module.use_running_average:
            where = "/".join(map(str, path)) or "the top"
            raise ValueError(
                f"model has nnx.BatchNorm at {where}: it mixes the examples of a batch, so that one example moves the "
                "gradients of all others and clipping bounds nothing, and its running statistics are released without "
                "noise. Use nnx.GroupNorm: model = jaxacct.train.to_group_norm(model). Or freeze averages that come "
                "from public data: model.eval(), or use_running_average=True."
            )
        frozen.update((id(module.mean), id(module.var)))
    # Statistics outside of the layers that were looked at above belong to layers of the user's own.
    for path, module in nnx.iter_modules(model):
        if isinstance(module, nnx.SpectralNorm):
            raise ValueError(
                f"model has nnx.SpectralNorm at {'/'.join(map(str, path)) or 'the top'}: a call moves the vectors of "
                "its power iteration, and a private step moves parameters alone, so that the norm would be that of the "
                "first weights. Nothing in them is private: divide by a norm that is computed of the weights in the "
                "call itself."
            )
    for path, variable in nnx.iter_graph(model):
        if isinstance(variable, nnx.BatchStat) and id(variable) not in frozen:
            raise ValueError(
                f"model keeps running statistics at {'/'.join(map(str, path))} (nnx.BatchStat): they would be made "
                "from private data without noise. Remove them, or keep them in an nnx.Variable of another type if they "
                "are public and stay as they are."
            )
    if not jax.tree.leaves(nnx.state(model, nnx.Param)):
        raise ValueError("model has no nnx.Param: there is nothing to train.")


def split_params(model: nnx.Module, trainable: Trainable = None) -> tuple[Any, nnx.State, nnx.State]:
    """Returns the graph, the trained parameters and all else of ``model``; :func:`merge_params` joins them again.

    Args:
        model: a Flax module; not modified.
        trainable: which parameters train. None: every ``nnx.Param``, or, where there are adapters
            (``nnx.LoRAParam``, such as :func:`jaxacct_recipes.lora` makes), those alone. One path or several, as
            strings with ``/`` between the names of modules: the parameters at it or below it. A predicate, as Flax
            filters are: of the path, a tuple, and the variable.

    Returns:
        ``(graph, trained, rest)``; ``trained`` is a pytree of the chosen ``nnx.Param``, to differentiate and to clip;
        ``rest`` has the frozen ones and whatever else the module keeps in Variables or arrays. Both are copies: later
        changes of the model do not reach them.

    Raises ValueError where nothing is left to train, or a path leads to no parameter.

    >>> model = nnx.Sequential(nnx.Linear(4, 3, rngs=nnx.Rngs(0)), nnx.Linear(3, 2, rngs=nnx.Rngs(1)))
    >>> graph, trained, rest = split_params(model, "layers/1")
    >>> [leaf.shape for leaf in jax.tree.leaves(trained)]
    [(2,), (3, 2)]
    >>> merge_params(graph, trained, rest)(jax.numpy.zeros(4)).shape
    (2,)
    """
    adapted = bool(jax.tree.leaves(nnx.state(model, nnx.LoRAParam)))
    alone = nnx.LoRAParam if adapted else nnx.Param
    chosen = alone if trainable is None else nnx.All(nnx.Param, _predicate(model, trainable))
    graph, trained, rest = nnx.split(model, chosen, ...)  # type: ignore[misc]
    if not jax.tree.leaves(trained):
        raise ValueError(
            f"trainable = {trainable!r} leaves no parameter to train: the model has {', '.join(_param_paths(model))}."
        )
    return graph, copy_tree(trained), copy_tree(rest)


def merge_params(graph: Any, trained: Any, rest: Any) -> Any:
    """Returns the module of the parts of :func:`split_params`; what is written into it does not reach them.

    The arrays are the same: copy them (:func:`.ownership.copy_tree`) for a module that leaves the program.
    """
    return nnx.merge(graph, fresh(trained), fresh(rest))


def copy_module(model: nnx.Module) -> nnx.Module:
    """Returns a copy of a module that shares nothing with it."""
    graph, state = nnx.split(model)
    return nnx.merge(graph, copy_tree(state))


def without_params(rest: nnx.State) -> nnx.State:
    """Returns the part of :func:`split_params`' rest that is no parameter: a run's folder need hold no more of it.

    >>> _, _, rest = split_params(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), "bias")
    >>> jax.tree.leaves(without_params(rest))
    []
    """
    return nnx.filter_state(rest, nnx.Not(nnx.Param))


def _predicate(model: nnx.Module, trainable: str | Sequence[str] | Callable[[Path, Any], bool]) -> Callable[..., bool]:
    if callable(trainable):
        return trainable
    paths = (trainable,) if isinstance(trainable, str) else tuple(trainable)
    known = _param_paths(model)
    for path in paths:
        if not any(_is_within(name, path) for name in known):
            raise ValueError(f"trainable = {path!r} leads to no parameter: the model has {', '.join(known)}.")
    return lambda path, variable: any(_is_within("/".join(map(str, path)), wanted) for wanted in paths)


def _param_paths(model: nnx.Module) -> list[str]:
    return ["/".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(model, nnx.Param))]


def _is_within(path: str, wanted: str) -> bool:
    return path == wanted or path.startswith(f"{wanted}/")


# ----------------------------------------------------------------------------------------------------
# Intermediates that a module sows while it works on examples, for a look inside: without any guarantee.
# ----------------------------------------------------------------------------------------------------


def unprotected_intermediates(
    model: nnx.Module, loss: Callable[..., Array], examples: tuple[PyTree, ...], *, key: jax.Array | None = None
) -> PyTree:
    """Returns what ``loss`` sows into ``model`` as ``nnx.Intermediate``, for each example.

    Args:
        model: not modified; for instance :attr:`.DPTrainer.model`.
        loss: as the trainer takes it.
        examples: of the form of the trainer's data: each part has a leading axis.
        key: typed key that dropout and ``loss`` draw from, one for each example folded in. None: streams of ``model``
            are used as they are, by all examples alike, and ``loss`` must not take a key.

    Returns:
        A dict, nested as the modules are, of the values sown (a tuple, unless it was reduced), each with a leading
        axis: the examples.

    No guarantee: this is a function of the examples without noise, and no ledger knows of it. Give it public data, or
    keep what it returns to yourself: what is chosen by looking at it is no longer covered by a guarantee either.

    Raises ValueError where ``loss`` takes a key and there is none.

    >>> class Sows(nnx.Module):
    ...     def __call__(self, x):
    ...         self.sow(nnx.Intermediate, "squares", x**2)
    ...         return x
    >>> found = unprotected_intermediates(Sows(), lambda model, x: jnp.sum(model(x)), (jnp.array([1.0, 3.0]),))
    >>> found["squares"][0].tolist()
    [1.0, 9.0]
    """
    graph, state = nnx.split(model)
    wants_key = takes_key(loss, len(examples))
    if wants_key and key is None:
        raise ValueError("key = None, and loss takes a key: give one, such as jax.random.key(0).")

    def of_one(index: Array, example: tuple[PyTree, ...]) -> PyTree:
        own = None if key is None else jax.random.split(jax.random.fold_in(key, index))
        copied = nnx.merge(graph, fresh(state if own is None else reseed(state, own[0])))
        more = {"key": own[1]} if wants_key and own is not None else {}
        _, sown = nnx.capture(lambda model: loss(model, *example, **more), nnx.Intermediate)(copied)
        return nnx.to_pure_dict(sown)

    rows = len(jax.tree.leaves(examples)[0])
    return jax.jit(jax.vmap(of_one))(jnp.arange(rows), examples)


# ----------------------------------------------------------------------------------------------------
# Loss of one example as clipping sees it: a function of the parameters, the example, and one key.
#
# All that is random in it (dropout, augmentation, what the loss draws itself) comes from that key, which the run's key,
# the step and the example's index determine. So with the run's key fixed, an example's gradient depends on that example
# and the parameters alone: neither on who else is in the batch nor on its row there, which devices and microbatches
# change. Clipping then bounds the sensitivity whatever is drawn, and a guarantee that holds for every value of keys
# drawn independently of data, sampling and noise holds for their mixture. The keys have a purpose of their own below
# the run's: a loss that gave its key away would say nothing about the keys of the noise.
# ----------------------------------------------------------------------------------------------------

AUGMENT, LOSS, STREAMS = range(3)
"""Purposes of a view's keys. Any distinct numbers from 0 to 2 are sound; others change what a seed gives."""


@dataclass(frozen=True)
class ExampleLoss:
    """The mean loss of an example's views, whose gradient is the mean of theirs.

    Attributes:
        loss: ``loss(model, *example)``, or ``loss(model, *example, key=...)``.
        graph: the module's structure.
        takes_key: whether ``loss`` wants a key.
        has_streams: whether the module keeps random streams (``nnx.Dropout``, ``nnx.RNN``); each gets a key of its own.
        augmentation: the number of views, and the function that makes them.
    """

    loss: Callable[..., Array]
    graph: Any
    takes_key: bool
    has_streams: bool
    augment: Callable[..., PyTree] | None
    views: int

    @classmethod
    def of(
        cls, loss: Callable[..., Array], graph: Any, params: PyTree, constants: PyTree, example: tuple[Any, ...],
        augment: Callable[..., PyTree] | None, views: int,
    ) -> ExampleLoss:  # fmt: skip
        """Returns the loss, once it is known to work on one example of these shapes and dtypes.

        Raises:
            TypeError: the loss's signature leaves open whether it wants a key; an augmentation that gives no tuple.
            ValueError: its value is no real scalar; several views of an example that are all the same; it writes into
                the module where Flax does not allow that.
        """
        variables = jax.tree.leaves(constants, is_leaf=_is_variable)
        has_streams = any(isinstance(variable, nnx.RngKey) for variable in variables)
        made = cls(loss, graph, takes_key(loss, len(example)), has_streams, augment, views)
        if views > 1 and not made.random:
            raise ValueError(
                f"views = {views} of each example are all the same: give augment, or a loss or module "
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
        """Whether the loss needs a key."""
        return self.takes_key or self.has_streams or self.augment is not None

    def __call__(
        self, params: PyTree, constants: PyTree, example: tuple[Any, ...], key: jax.Array | None = None
    ) -> Array:
        """Returns the loss of one example. ``key``: the example's own in this step; needed only if :attr:`random`."""
        if not self.random:
            return self.loss(merge_params(self.graph, params, constants), *example)
        assert key is not None
        keys = jax.random.split(key, (self.views, 3))
        one = lambda keys: self._of_view(params, constants, example, keys)  # noqa: E731
        return one(keys[0]) if self.views == 1 else jnp.mean(jax.vmap(one)(keys))

    def _of_view(self, params: PyTree, constants: PyTree, example: tuple[Any, ...], keys: jax.Array) -> Array:
        if self.augment is not None:
            example = self.augment(keys[AUGMENT], example)
            if not isinstance(example, tuple):
                raise TypeError(f"augment returned a {type(example).__name__}: it must return the example, a tuple.")
        if self.has_streams:
            constants = reseed(constants, keys[STREAMS])
        more = {"key": keys[LOSS]} if self.takes_key else {}
        return self.loss(merge_params(self.graph, params, constants), *example, **more)


def check_one_number(value: Any, source: str, *, floating: bool = False) -> None:
    """Raises ValueError where what ``source`` returned for one example, or the shape of that, is not one number.

    >>> check_one_number(True, "correct")
    """
    shape = () if isinstance(value, (bool, int, float)) else getattr(value, "shape", None)
    is_complex = shape is not None and jnp.iscomplexobj(value)
    if shape != () or is_complex or (floating and not jnp.issubdtype(value.dtype, jnp.floating)):
        shown = repr(value) if shape is None else f"an array of shape {shape} and dtype {value.dtype}"
        raise ValueError(
            f"{source} returned {shown} for one example, which has no batch axis and is to count once: return a "
            f"{'real ' * is_complex}{'floating-point ' * floating}scalar, such as an entry, a sum or a mean."
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


def reseed(constants: PyTree, key: jax.Array) -> PyTree:
    """Returns the state with a new key for each of its random streams, and everything else as it was.

    >>> rngs = nnx.Rngs(dropout=0, noise=0)
    >>> keys = nnx.state(rngs, nnx.RngKey)
    >>> new = reseed(keys, jax.random.key(1))
    >>> len({str(jax.random.key_data(leaf)) for leaf in [*jax.tree.leaves(keys), *jax.tree.leaves(new)]})
    3
    """
    number = itertools.count()

    def new(variable: Any) -> Any:
        if not isinstance(variable, nnx.RngKey):
            return variable
        own = jax.random.fold_in(key, next(number))
        # Stacked layers, which are scanned over, have stacked keys.
        return variable.replace(jax.random.split(own, variable.shape) if variable.shape else own)

    return jax.tree.map(new, constants, is_leaf=_is_variable)


def _is_variable(leaf: Any) -> bool:
    return isinstance(leaf, nnx.Variable)


# ----------------------------------------------------------------------------------------------------
# Group normalization in the place of batch normalization, under which no example has a gradient of its own.
# ----------------------------------------------------------------------------------------------------


class ExampleGroupNorm(nnx.GroupNorm):
    """``nnx.GroupNorm`` of one example, or of several along a first axis, which are never mixed.

    Flax's own always takes the first axis for the batch's: each row of a single image would count as an example.

    Args:
        num_features: number of features, in the last axis.
        num_groups: number of groups, each normalized together over all other axes of an example.
        example_axes: number of axes that one example has here; features are the last.
        **options: as those of ``nnx.GroupNorm``.

    >>> ExampleGroupNorm(4, 2, example_axes=3, rngs=nnx.Rngs(0))(jax.numpy.ones((5, 5, 4))).shape
    (5, 5, 4)
    """

    def __init__(self, num_features: int, num_groups: int, *, example_axes: int, **options: Any) -> None:
        super().__init__(num_features, num_groups, **options)
        self.example_axes = example_axes

    def __call__(
        self, x: jax.Array, use_running_average: bool | None = None, *, mask: jax.Array | None = None
    ) -> jax.Array:
        """Returns ``x``, normalized; of the same shape.

        ``use_running_average`` is there for calls written for ``nnx.BatchNorm``: without averages it has no effect.
        """
        if x.ndim == self.example_axes:
            return super().__call__(x[None], mask=None if mask is None else mask[None])[0]
        if x.ndim != self.example_axes + 1:
            raise ValueError(
                f"GroupNorm got an array of shape {x.shape}: its examples have {self.example_axes} axes, and one more "
                "in a batch. Give to_group_norm the example_axes that are there."
            )
        return super().__call__(x, mask=mask)


@takes_python_values
def to_group_norm(model: nnx.Module, groups: int = 32, *, example_axes: int = 3) -> nnx.Module:
    """Returns a copy of ``model`` with group normalization wherever it has ``nnx.BatchNorm``; all else stays as it is.

    Args:
        model: not modified.
        groups: number of groups of features that are normalized together; where it does not divide the number of
            features, their greatest common divisor.
        example_axes: axes of one example where it is normalized: 3 for images (height, width, features), 1 behind
            dense layers. Convert parts with different ones by themselves.

    Scales and biases are kept; running averages are left out. The function that the model computes is another: a
    trained one has to be trained again.

    Raises ValueError where the features that are normalized are not in the last axis, or groups behind dense layers
    are of one feature each.

    Source: Wu and He (2018), "Group normalization".

    >>> model = nnx.Sequential(nnx.Conv(3, 8, (3, 3), rngs=nnx.Rngs(0)), nnx.BatchNorm(8, rngs=nnx.Rngs(0)))
    >>> to_group_norm(model, groups=4).layers[1].num_groups
    4
    """
    copied = nnx.clone(model)
    made: dict[int, ExampleGroupNorm] = {}  # one that is shared stays shared

    def group_norm(norm: nnx.BatchNorm) -> ExampleGroupNorm:
        if id(norm) not in made:
            made[id(norm)] = _group_norm(norm, groups, example_axes)
        return made[id(norm)]

    if isinstance(copied, nnx.BatchNorm):
        return group_norm(copied)
    # The graph is listed before it is changed; a layer that is shared is replaced by one layer.
    for _, node in list(nnx.iter_graph(copied)):
        if isinstance(node, nnx.Pytree):
            for name, child in list(vars(node).items()):
                if isinstance(child, nnx.BatchNorm):
                    setattr(node, name, group_norm(child))
    return copied


def _group_norm(norm: nnx.BatchNorm, groups: int, example_axes: int) -> ExampleGroupNorm:
    if norm.axis != -1:
        raise ValueError(f"nnx.BatchNorm with axis = {norm.axis}: groups are made of features in the last axis, -1.")
    count = math.gcd(groups, norm.num_features)
    if example_axes == 1 and count == norm.num_features:
        raise ValueError(
            f"groups = {groups} puts each of {norm.num_features} features into a group of its own, and normalizes it "
            f"to 0 where an example has no other axes: give groups = {max(norm.num_features // 8, 1)} or another "
            "number well below theirs."
        )
    new = ExampleGroupNorm(
        norm.num_features, count, example_axes=example_axes, epsilon=norm.epsilon,
        dtype=norm.dtype, param_dtype=norm.param_dtype, use_bias=norm.use_bias, use_scale=norm.use_scale,
        use_fast_variance=norm.use_fast_variance, promote_dtype=norm.promote_dtype, rngs=nnx.Rngs(0),
    )  # fmt: skip
    new.scale, new.bias = norm.scale, norm.bias
    return new
