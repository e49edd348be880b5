"""From what a user gives the trainer to what it works with."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxacct import validation
from jaxacct.filters import RenyiFilter
from jaxacct.policies import Constant, Policy
from jaxacct.strategies import Strategy
from jaxacct.train.clipping import ClippingRule, Flat
from jaxacct.train.clipping.rules import check_finite_clip_norm
from jaxacct.train.groups import Batches, check_one
from jaxacct.train.metrics import Metrics
from jaxacct.train.owned import owned_settings
from jaxacct.train.sampling import PoissonSampler

MOST_STEPS = 10**6
"""Steps that cut batches are paid for where noise is chosen on the way, and the run's length is not known."""


def affordable_steps(
    num_examples: int, sampling_rate: float, noise_multiplier: float, *, epsilon: float, delta: float
) -> int:
    """Returns the most steps that a Rényi filter over (epsilon, delta) grants; a run may stop a few earlier.

    Known before training, from public numbers: for learning-rate schedules. The few are what cut batches cost in delta.

    >>> affordable_steps(60_000, 0.01, 1.0, epsilon=3.0, delta=1e-5) > 1500
    True
    """
    # A sampler with room for everyone, for its exact rate: the capacity depends on the number of steps.
    mechanism = PoissonSampler(num_examples, sampling_rate, num_examples + 1).mechanism(noise_multiplier)
    return int(RenyiFilter(epsilon, delta).remaining(mechanism))


def rate_of(sampling_rate: float | None, expected_batch_size: float | None, size: int) -> float:
    """Returns the sampling rate that exactly one of the two gives, for a data set of ``size`` examples.

    Raises ValueError where both or none are given, or the one is out of range.

    >>> rate_of(None, 50, 200)
    0.25
    """
    if (sampling_rate is None) == (expected_batch_size is None):
        raise ValueError("give exactly one of sampling_rate and expected_batch_size.")
    if sampling_rate is not None:
        validation.check_sampling_rate(sampling_rate)
        return float(sampling_rate)
    assert expected_batch_size is not None
    validation.check_number(expected_batch_size, "expected_batch_size")
    if not 0 < expected_batch_size <= size:
        raise ValueError(
            f"expected_batch_size = {expected_batch_size} does not fit {size} examples: give a number above 0, at most "
            f"{size}."
        )
    return expected_batch_size / size


def policy_of(policy: Policy | None, noise: float | None, batches: Batches, size: int) -> Policy:
    """Returns the policy that the settings make; raises ValueError where they say too little or too much.

    Of noise that a plan will solve for it says 1.
    """
    sampler, rate, batch = batches.sampler, batches.sampling_rate, batches.expected_batch_size
    if policy is not None:
        if noise is not None:
            raise ValueError("give exactly one of noise_multiplier and policy.")
        if sampler is not None or rate is not None or batch is not None:
            raise ValueError("policy has its own sampling rate: leave out sampling_rate, expected_batch_size, sampler.")
        planned = getattr(policy, "num_examples", size)
        if planned != size:
            raise ValueError(
                f"policy is for num_examples = {planned}, and {size} were planned for: its rates would be others."
            )
        if isinstance(policy, Constant):
            return Constant(float(policy.noise_multiplier), float(policy.sampling_rate))
        return owned_settings(policy, "policy")
    noise = 1.0 if noise is None else noise
    validation.check_noise_multiplier(noise)
    if sampler is None:
        return Constant(float(noise), rate_of(rate, batch, size))
    if rate is not None or batch is not None:
        raise ValueError("sampler has its own batch size: leave out sampling_rate and expected_batch_size.")
    return Constant(float(noise), min(sampler.expected_batch_size / sampler.num_examples, 1.0))


def rule_of(clip_norm: float | None, clipping: ClippingRule | None) -> ClippingRule:
    """Returns the clipping rule that exactly one of the two gives; raises ValueError otherwise."""
    if (clip_norm is None) == (clipping is None):
        raise ValueError("give exactly one of clip_norm and clipping.")
    if clipping is not None:
        if not isinstance(clipping, ClippingRule):
            raise TypeError(f"clipping is a {type(clipping).__name__}: give a rule of jaxacct.train.clipping.")
        return clipping
    assert clip_norm is not None
    check_one(clip_norm, "clip_norm")
    check_finite_clip_norm(clip_norm)
    return Flat(float(clip_norm))


def gradient_noise(
    policy: Policy, rule: ClippingRule, metrics: Metrics | None = None, strategy: Strategy | None = None
) -> float | None:
    """Returns the noise multiplier of the gradients under a constant policy; None under others.

    Raises ValueError where a step pays for something else as well, and the noise is not constant or not independent.
    """
    shares = type(rule).gradient_noise_multiplier is not ClippingRule.gradient_noise_multiplier
    if strategy is not None and (shares or metrics is not None):
        name = f"clipping = {type(rule).__name__}" if shares else "metrics"
        raise ValueError(f"{name} takes a share of independent noise: leave it out, or leave noise out.")
    if isinstance(policy, Constant):
        noise = policy.noise_multiplier
        return rule.gradient_noise_multiplier(noise if metrics is None else metrics.gradient_noise_multiplier(noise))
    if metrics is not None:
        raise ValueError("metrics take their share of a constant noise: leave policy out.")
    if shares:
        raise ValueError(f"clipping = {type(rule).__name__} takes its share of a constant noise: leave policy out.")
    return None


def poisson_sampler(size: int, policy: Policy, epsilon: float, delta: float, *, known_length: bool) -> PoissonSampler:
    """Returns the sampler at the policy's largest rate, cut for the steps that constant noise pays for, if it is that.

    ``known_length``: whether the ledger ends a run of constant noise after those; otherwise it is cut for the most.
    """
    _, rate = policy.sampling_rates
    steps = MOST_STEPS
    if isinstance(policy, Constant) and known_length:
        steps = affordable_steps(size, rate, policy.noise_multiplier, epsilon=epsilon, delta=delta)
    return PoissonSampler.for_budget(size, rate, epsilon=epsilon, delta=delta, steps=max(steps, 1))


def check_params(params: Any) -> None:
    """Raises where there are no trained parameters, or some are not of a real floating-point dtype."""
    leaves = jax.tree.leaves(params)
    if not leaves or not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves):
        raise ValueError(
            f"model has parameters of dtypes {sorted({str(leaf.dtype) for leaf in leaves})}: it needs nnx.Param "
            "leaves, all of a real floating-point dtype."
        )
