"""The settings of a run: checks of what the trainer is given, and what it then works with.

* the checks, which look at one setting each and fill in what is open; :mod:`.config` puts the settings of a budget
  together;
* :func:`names_what_is_meant` knows the names that other libraries have for settings.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxacct import validation
from jaxacct.numerics.chacha20 import as_chacha20, is_chacha20
from jaxacct.policies import Constant, Policy
from jaxacct.strategies import Strategy
from jaxacct.train.clipping import ClippingRule, Flat
from jaxacct.train.clipping.rules import check_finite_clip_norm
from jaxacct.train.keys import as_threefry
from jaxacct.train.metrics import Metrics
from jaxacct.train.ownership import entries_of
from jaxacct.train.state import Keeper

NoiseArithmetic = Literal["integer", "float64"]
"""Arithmetics that noise is drawn in, as :class:`.DPTrainer` explains them."""


def check_one(value: Any, name: str) -> None:
    """Raises where a setting is an array with axes, or no number."""
    if np.ndim(value):
        raise ValueError(f"{name} = {value!r} has shape {np.shape(value)}, and a run has one: give a single number.")
    validation.check_scalar(value, name)


def drawn_rate(sampling_rate: float | None, expected_batch_size: float | None, size: int) -> float:
    """Returns the sampling rate that exactly one of the two gives, for a data set of ``size`` examples.

    A quotient is rounded to the nearest float64, and not up, as :func:`.display.rate_of` rounds: batches are drawn at
    the rate that is returned, so that any rounding is sound, and a checkpoint knows its run by all digits of it.

    Raises ValueError where both or none are given, or the one is out of range.

    >>> drawn_rate(None, 50, 200)
    0.25
    """
    if (sampling_rate is None) == (expected_batch_size is None):
        raise ValueError("give exactly one of sampling_rate and expected_batch_size.")
    if sampling_rate is not None:
        check_one(sampling_rate, "sampling_rate")
        validation.check_sampling_rate(sampling_rate)
        return float(sampling_rate)
    assert expected_batch_size is not None
    check_one(expected_batch_size, "expected_batch_size")
    batch = float(expected_batch_size)
    if not 0 < batch <= size:
        raise ValueError(
            f"expected_batch_size = {expected_batch_size} does not fit {size} examples: give a number above 0, at most "
            f"{size}."
        )
    return batch / size


def public_size(present: int, most_examples: int | None) -> int:
    """Returns the public number of examples: ``most_examples`` if that is given, else how many are ``present``.

    Raises ValueError where it is less than there are.

    >>> public_size(31, None), public_size(31, 40)
    (31, 40)
    """
    if most_examples is None:
        return present
    most_examples = validation.check_count(most_examples, "most_examples", "a public number that the data has at most")
    if most_examples < present:
        raise ValueError(
            f"most_examples = {most_examples} is less than data has: leave examples out, at random, or give a larger "
            "number without looking at the data."
        )
    return int(most_examples)


def rule_of(clip_norm: float | ClippingRule | None) -> ClippingRule:
    """Returns the clipping rule that is given, :class:`.Flat` for a number.

    >>> rule_of(0.5)
    Flat(clip_norm=0.5)
    """
    if clip_norm is None:
        raise ValueError("clip_norm missing: give a bound on each example's gradient, or a rule that sets one.")
    if isinstance(clip_norm, ClippingRule):
        clip_norm.validate()
        # The noise of an infinite norm is infinite: all that a step would buy.
        check_finite_clip_norm(clip_norm.sensitivity, f"clip_norm = {type(clip_norm).__name__}(...), whose sensitivity")
        return clip_norm
    check_one(clip_norm, "clip_norm")
    check_finite_clip_norm(clip_norm)
    return Flat(float(clip_norm))


def check_shares(rule: ClippingRule, metrics: Metrics | None, strategy: Strategy | None) -> bool:
    """Returns whether a rule takes a share of each step's noise; raises ValueError for a share of correlated noise."""
    shares = type(rule).gradient_noise_multiplier is not ClippingRule.gradient_noise_multiplier
    if strategy is not None and (shares or metrics is not None):
        name = f"clip_norm = {type(rule).__name__}" if shares else "metrics"
        raise ValueError(f"{name} takes a share of independent noise: leave it out, or leave noise out.")
    return shares


def gradient_noise(
    policy: Policy, rule: ClippingRule, metrics: Metrics | None = None, strategy: Strategy | None = None
) -> float | None:
    """Returns the noise multiplier of the gradients under a constant policy; None under others.

    Raises ValueError where a step pays for something else as well, and the noise is not constant or not independent.
    """
    shares = check_shares(rule, metrics, strategy)
    if isinstance(policy, Constant):
        noise = policy.noise_multiplier
        return rule.gradient_noise_multiplier(noise if metrics is None else metrics.gradient_noise_multiplier(noise))
    if metrics is not None:
        raise ValueError("metrics take their share of a constant noise: leave policy out.")
    if shares:
        raise ValueError(f"clip_norm = {type(rule).__name__} takes its share of a constant noise: leave policy out.")
    return None


def check_optimizer(optimizer: optax.GradientTransformation, params: Any, state: Any) -> None:
    """Raises ValueError where an optimizer asks for more than gradients and parameters: a loss, or a line search."""
    wrapped = optax.with_extra_args_support(optimizer)
    try:
        # A step gives its noise, which is public.
        jax.eval_shape(lambda *arguments: wrapped.update(*arguments, noise_deviation=1.0), params, state, params)
    except TypeError as error:
        if "required keyword-only argument" not in str(error):
            raise
        missing = str(error).partition("argument")[2].strip(" s:")
        raise ValueError(
            f"optimizer asks for {missing} beside the gradients, as optax.lbfgs and reduce_on_plateau do: the loss of "
            "a batch is made of private data, and no noise protects it. Give an optimizer of gradients alone, and "
            "change its rate by a schedule of the step, or after fit by a number that is public."
        ) from None


def check_params(params: Any) -> None:
    """Raises where there are no trained parameters, or some are not of a real floating-point dtype."""
    leaves = jax.tree.leaves(params)
    if not leaves or not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves):
        raise ValueError(
            f"model has parameters of dtypes {sorted({str(leaf.dtype) for leaf in leaves})}: it needs nnx.Param "
            "leaves, all of a real floating-point dtype."
        )


def check_parts(optimizer: Any, loss: Any, correct: Any, metrics: Any) -> None:
    """Raises TypeError where one of a trainer's parts is of another kind."""
    if not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(f"optimizer = {optimizer!r}: give an Optax transformation, such as optax.adam(1e-3).")
    for name, part in (("loss", loss), ("correct", correct)):
        if not (callable(part) or (part is None and name == "correct")):
            raise TypeError(f"{name} is a {type(part).__name__}: give a function of the model and an example.")
    if not (metrics is None or isinstance(metrics, Metrics)):
        raise TypeError(f"metrics = {metrics!r}: give a jaxacct.train.Metrics.")


def check_views(augment: Any, views: Any) -> None:
    """Raises where ``augment`` is no function, or ``views`` no number of views."""
    if augment is not None and not callable(augment):
        raise TypeError(f"augment is a {type(augment).__name__}: give a function of a key and an example.")
    if not isinstance(views, int) or views < 1:
        raise ValueError(f"views = {views!r} is not a number of views: give a whole number of at least 1.")


def check_placement(microbatch_size: Any, ghost: Any, devices: Any, mesh: Any) -> None:
    """Raises where one of the settings is out of range by which gradients are placed and ordered."""
    if microbatch_size is not None:
        meaning = "the examples of a microbatch, or None for the whole batch"
        microbatch_size = validation.check_count(microbatch_size, "microbatch_size", meaning)
    if not isinstance(ghost, (bool, np.bool_)):
        raise TypeError(f"ghost = {ghost!r} is a {type(ghost).__name__}: give True or False.")
    if mesh is not None and not isinstance(mesh, jax.sharding.Mesh):
        raise TypeError(f"mesh is a {type(mesh).__name__}: give a jax.sharding.Mesh, as jax.make_mesh makes it.")
    if devices is not None and (isinstance(devices, int) or not len(devices) or not isinstance(devices[0], jax.Device)):
        raise ValueError(f"devices = {devices!r} are no devices: give some of jax.devices(), or None for one.")


def check_callbacks(evaluate: Any, on_evaluation: Any, keeper: Any, progress: Any) -> None:
    """Raises TypeError where :meth:`.DPTrainer.fit` gets something else than it will call: before anything is paid."""
    for name, callback, what in (
        ("evaluate", evaluate, "a function of the model"), ("on_evaluation", on_evaluation, "a function of a record"),
    ):  # fmt: skip
        if callback is not None and not callable(callback):
            raise TypeError(f"{name} = {callback!r} is a {type(callback).__name__}: give {what}, or None.")
    if not (keeper is None or isinstance(keeper, Keeper)):
        raise TypeError(f"keeper is a {type(keeper).__name__}: give a jaxacct.train.Checkpoints, or None.")
    if not (progress is None or isinstance(progress, (bool, np.bool_)) or callable(progress)):
        raise TypeError(f"progress = {progress!r}: give True, False, None, or a function of a step and words.")


def key_for(noise_arithmetic: NoiseArithmetic | None, key: jax.Array, reason: str) -> jax.Array:
    """Returns a run's key for an arithmetic of noise, which the key's generator decides: ChaCha20 draws integers.

    None: integers with a ChaCha20 key, as there is without a seed, unless there is a ``reason`` against them.

    Raises ValueError where integers are asked for, and there is a reason against them.
    """
    if noise_arithmetic is not None:
        validation.check_one_of(noise_arithmetic, "noise_arithmetic", get_args(NoiseArithmetic))
    if noise_arithmetic == "integer" and reason:
        raise ValueError(
            f"noise_arithmetic = 'integer' is not possible for {reason}. Leave it out, or change the noise."
        )
    if noise_arithmetic == "float64" or reason or (noise_arithmetic is None and not is_chacha20(key)):
        return as_threefry(key)
    return as_chacha20(key)


def samples_of_step(key: jax.Array, params: Any, metrics: Metrics | None) -> int:
    """Returns how many values of integer noise one step draws at most; 0 where the key draws normal numbers."""
    if not is_chacha20(key):
        return 0
    return entries_of(params) + len(metrics.names if metrics else ()) + 2  # the count of a rule, and that of a policy


P = ParamSpec("P")
"""Parameters of what :func:`names_what_is_meant` decorates."""


def names_what_is_meant(init: Callable[P, None]) -> Callable[P, None]:
    """Returns ``init``, which for an argument that it lacks raises TypeError and says what its name is here."""
    # Names that other libraries have for arguments of the trainer, and the trainer's. For an error message only.
    other_names = {
        **dict.fromkeys(
            ("max_grad_norm", "l2_norm_clip", "clipping_norm", "clipping_threshold", "clipping"), "clip_norm"
        ),
        **dict.fromkeys(("batch_size", "lot_size", "logical_batch_size"), "expected_batch_size"),
        **dict.fromkeys(("sample_rate", "rate"), "sampling_rate"),
        **dict.fromkeys(("target_epsilon", "target_delta", "budget"), "epsilon and delta"),
        "max_physical_batch_size": "microbatch_size",
    }
    known = inspect.signature(init).parameters

    @functools.wraps(init)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        for name in sorted(kwargs.keys() - known.keys()):
            meant = f": {other_names[name]} is meant" if name in other_names else ""
            raise TypeError(f"DPTrainer() got an unexpected keyword argument {name!r}{meant}.")
        init(*args, **kwargs)

    return wrapper
