"""The settings of a run: checks of what the trainer is given, and what it then works with.

* :func:`plan_spending` chooses policy, ledger and sampler, and solves for the third where a plan is given two of
  epsilon, noise multiplier and length; the functions before it check one setting each and fill in what is open;
* :func:`takes_earlier_names` reads names that settings had in earlier versions, and knows those of other libraries.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, ParamSpec, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxacct import validation
from jaxacct.filters import RenyiFilter
from jaxacct.mechanisms import Mechanism
from jaxacct.outward import steps_of
from jaxacct.policies import Constant, FinitePolicy, Policy
from jaxacct.strategies import CyclicPoisson, Strategy
from jaxacct.train.clipping import ClippingRule, Flat
from jaxacct.train.clipping.rules import check_finite_clip_norm
from jaxacct.train.copies import owned_settings
from jaxacct.train.metrics import Metrics
from jaxacct.train.planned import Plan, SideQuery, plan
from jaxacct.train.sampling import Correlated, CyclicPoissonSampler, PoissonSampler
from jaxacct.train.sampling.correlated import separating
from jaxacct.validation import MOST_COUNT

Ledger = Literal["planned", "menu", "filter", "odometer"]
"""Kinds of ledgers, as :class:`.DPTrainer` explains them."""

Items = Sequence[Mechanism | tuple[Mechanism, int]]
"""Menu: mechanisms of single runs, each by itself or with the number of runs that is bought together."""

MOST_STEPS = 10**6
"""Number of steps over which cut batches are paid for where the run's length is not known before. Sound for any value,
for such a run ends after as many (:attr:`.DPTrainer.horizon`); a larger one costs capacity, or delta."""


def check_one(value: Any, name: str) -> None:
    """Raises where a setting is an array with axes, or no number."""
    if np.ndim(value):
        raise ValueError(f"{name} = {value!r} has shape {np.shape(value)}, and a run has one: give a single number.")
    validation.check_scalar(value, name)


def affordable_steps(
    num_examples: int, sampling_rate: float, noise_multiplier: float, *, epsilon: float, delta: float
) -> int:
    """Returns the most steps that a Rényi filter over (epsilon, delta) grants; a run may stop a few earlier.

    Known before training, from public numbers: for learning-rate schedules. A run stops earlier because batches that
    are cut at capacity cost some of its delta.

    >>> affordable_steps(60_000, 0.01, 1.0, epsilon=3.0, delta=1e-5) > 1500
    True
    """
    # A sampler with room for everyone: the capacity of the run's own depends on the number of steps, which is sought.
    mechanism = PoissonSampler(num_examples, sampling_rate, num_examples + 1).mechanism(noise_multiplier)
    return int(RenyiFilter(epsilon, delta).remaining(mechanism))


def drawn_rate(sampling_rate: float | None, expected_batch_size: float | None, size: int) -> float:
    """Returns the sampling rate that exactly one of the two gives, for a data set of ``size`` examples.

    A quotient is rounded to the nearest float64, and not up, as :func:`.outward.rate_of` rounds: batches are drawn at
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


def policy_of(
    policy: Policy | None, noise: float | None, rate: float | None, batch: float | None, sampler: Any, size: int
) -> Policy:
    """Returns the policy that the settings make; raises ValueError where they say too little or too much.

    Where a plan will solve for the noise, the policy's noise multiplier is 1.
    """
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
    check_one(noise, "noise_multiplier")
    validation.check_noise_multiplier(noise)
    if sampler is None:
        return Constant(float(noise), drawn_rate(rate, batch, size))
    if rate is not None or batch is not None:
        raise ValueError("sampler has its own batch size: leave out sampling_rate and expected_batch_size.")
    return Constant(float(noise), min(sampler.expected_batch_size / sampler.num_examples, 1.0))


def rule_of(clip_norm: float | ClippingRule | None, clipping: ClippingRule | None = None) -> ClippingRule:
    """Returns the clipping rule that is given, :class:`.Flat` for a number, in exactly one of the two arguments.

    >>> rule_of(0.5)
    Flat(clip_norm=0.5)
    """
    if clip_norm is None and clipping is None:
        raise ValueError("clip_norm missing: give a bound on each example's gradient, or a rule that sets one.")
    if clip_norm is not None and clipping is not None:
        raise ValueError("give exactly one of clip_norm and clipping.")
    given: Any = clip_norm if clipping is None else clipping
    if isinstance(given, ClippingRule):
        given.validate()
        # The noise of an infinite norm is infinite: all that a step would buy.
        check_finite_clip_norm(given.sensitivity, f"clip_norm = {type(given).__name__}(...), whose sensitivity")
        return given
    if clipping is not None:
        raise TypeError(f"clipping is a {type(given).__name__}: give a rule of jaxacct.train.clipping.")
    check_one(given, "clip_norm")
    check_finite_clip_norm(given)
    return Flat(float(given))


def gradient_noise(
    policy: Policy, rule: ClippingRule, metrics: Metrics | None = None, strategy: Strategy | None = None
) -> float | None:
    """Returns the noise multiplier of the gradients under a constant policy; None under others.

    Raises ValueError where a step pays for something else as well, and the noise is not constant or not independent.
    """
    shares = type(rule).gradient_noise_multiplier is not ClippingRule.gradient_noise_multiplier
    if strategy is not None and (shares or metrics is not None):
        name = f"clip_norm = {type(rule).__name__}" if shares else "metrics"
        raise ValueError(f"{name} takes a share of independent noise: leave it out, or leave noise out.")
    if isinstance(policy, Constant):
        noise = policy.noise_multiplier
        return rule.gradient_noise_multiplier(noise if metrics is None else metrics.gradient_noise_multiplier(noise))
    if metrics is not None:
        raise ValueError("metrics take their share of a constant noise: leave policy out.")
    if shares:
        raise ValueError(f"clip_norm = {type(rule).__name__} takes its share of a constant noise: leave policy out.")
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


def check_optimizer(optimizer: optax.GradientTransformation, params: Any, state: Any) -> None:
    """Raises ValueError where an optimizer asks for more than gradients and parameters: a loss, or a line search."""
    whole = optax.with_extra_args_support(optimizer)
    try:
        # A step tells its noise, which is public.
        jax.eval_shape(lambda *given: whole.update(*given, noise_deviation=1.0), params, state, params)
    except TypeError as error:
        if "required keyword-only argument" not in str(error):
            raise
        asked = str(error).partition("argument")[2].strip(" s:")
        raise ValueError(
            f"optimizer asks for {asked} beside the gradients, as optax.lbfgs and reduce_on_plateau do: the loss of a "
            "batch is made of private data, and no noise protects it. Give an optimizer of gradients alone, and change "
            "its rate by a schedule of the step, or after fit by a number that is public."
        ) from None


def check_params(params: Any) -> None:
    """Raises where there are no trained parameters, or some are not of a real floating-point dtype."""
    leaves = jax.tree.leaves(params)
    if not leaves or not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves):
        raise ValueError(
            f"model has parameters of dtypes {sorted({str(leaf.dtype) for leaf in leaves})}: it needs nnx.Param "
            "leaves, all of a real floating-point dtype."
        )


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


# ----------------------------------------------------------------------------------------------------
# Spending of a run: two of epsilon, noise and length make a plan; other settings have their ledger's budget.
# ----------------------------------------------------------------------------------------------------


class Spending(NamedTuple):
    """The spending of a run with nothing left open: its budget, ledger, policy and sampler, and its plan if any."""

    epsilon: float
    delta: float
    ledger: Ledger
    policy: Policy
    sampler: Any
    plan: Plan | None


def plan_spending(
    size: int,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    noise_multiplier: float | None = None,
    policy: Policy | None = None,
    ledger: Ledger | None = None,
    menu: Items = (),
    queries: tuple[SideQuery, ...] = (),
    sampling_rate: float | None = None,
    expected_batch_size: float | None = None,
    sampler: Any = None,
    most_examples: int | None = None,
    noise: Strategy | None = None,
) -> Spending:
    """Returns what a run on ``size`` examples spends; solves for what a plan leaves open.

    The arguments are those of :class:`.DPTrainer`.

    Raises ValueError or TypeError where one of them is out of range, or too little or too much is given.

    >>> made = plan_spending(200, epsilon=1.0, delta=1e-3, epochs=2, sampling_rate=0.1)
    >>> made.ledger, made.plan.steps, made.policy.noise_multiplier == made.plan.noise_multiplier
    ('planned', 20, True)
    """
    if epsilon is not None:
        check_one(epsilon, "epsilon")
        validation.check_positive(epsilon, "epsilon")
        epsilon = float(epsilon)
    if delta is None:
        raise TypeError("delta missing: give the probability that the guarantee leaves open, such as delta=1e-6.")
    check_one(delta, "delta")
    validation.check_delta(delta)
    delta = float(delta)
    if ledger is not None:
        validation.check_one_of(ledger if isinstance(ledger, str) else repr(ledger), "ledger", get_args(Ledger))
    if not isinstance(menu, (tuple, list)):
        raise TypeError(f"menu = {menu!r} is a {type(menu).__name__}: give pairs of mechanism and count.")
    if menu and ledger in ("planned", "filter"):
        raise ValueError(f"menu is given, and the ledger is {ledger!r}: give 'menu' or 'odometer', or none.")
    if steps is not None:
        steps = validation.check_count(steps, "steps", "the steps of a run")
    if epochs is not None:
        check_one(epochs, "epochs")
        validation.check_positive(epochs, "epochs")
        if steps is not None:
            raise ValueError(f"steps = {steps} and epochs = {epochs} are both given: give one.")
    for query in queries:
        if not isinstance(query, SideQuery):
            raise TypeError(f"queries has a {type(query).__name__}: give a tuple of jaxacct.train.SideQuery.")
    meaning = "the steps for one release"
    queries = tuple(query._replace(every=validation.check_count(query.every, "every", meaning)) for query in queries)
    if sampler is not None and not hasattr(sampler, "expected_batch_size"):
        raise TypeError(f"sampler is a {type(sampler).__name__}: give one of jaxacct.train.sampling.")
    present, size = size, public_size(size, most_examples)
    if most_examples is not None and sampler is not None:
        raise ValueError("most_examples and sampler are both given: give PoissonSampler(..., present=...).")
    if noise is not None and most_examples is not None:
        raise ValueError(f"most_examples = {size} and noise are both given: correlated noise takes the size as public.")
    # The ledger: the one asked for, else a menu for finitely many choices, a plan for constant settings, a filter else.
    chosen = policy_of(policy, noise_multiplier, sampling_rate, expected_batch_size, sampler, size)
    constant = isinstance(chosen, Constant)
    of_policy = isinstance(chosen, FinitePolicy) and bool(chosen.choices)
    usual: Ledger = "menu" if menu or (of_policy and not constant) else "planned" if constant else "filter"
    ledger = ledger or usual
    if ledger == "menu" and not (menu or of_policy):
        raise ValueError(
            f"ledger = 'menu', and {type(chosen).__name__} does not say among which settings it chooses: give "
            "menu=(...), mechanisms that dominate them, or ledger='filter'."
        )
    has_length = steps is not None or epochs is not None
    length = f"epochs = {epochs}" if steps is None else f"steps = {steps}"
    has_noise = noise_multiplier is not None or policy is not None
    if epsilon is None and (ledger != "planned" or not has_length or not has_noise):
        raise TypeError(
            "epsilon missing: give it; or else, for a planned run of constant noise, noise_multiplier with epochs or "
            "steps."
        )
    if not has_noise and (ledger != "planned" or not has_length):
        raise ValueError(
            "give exactly one of noise_multiplier and policy; or else, for a planned run of constant noise, epsilon "
            "with epochs or steps."
        )
    sampler = owned_settings(sampler, "sampler")
    if isinstance(sampler, Correlated):  # such as another trainer's: by itself it would not correlate any noise
        raise ValueError(
            "sampler is a Correlated, which says what is accounted and draws no noise: give the trainer its batches as "
            "sampler and its strategy as noise."
        )
    if noise is not None:
        _check_correlated(noise, chosen, sampler, ledger, is_open=ledger != "planned" or not has_length)
    # Ledgers that are not planned end the run by themselves; their sampler is cut for the longest run they may grant.
    if ledger != "planned":
        assert epsilon is not None
        if queries:
            raise ValueError(
                f"queries = {queries} are of a planned run, and the ledger is {ledger!r}: leave them out, and "
                "spend them from the ledger of what releases them."
            )
        if has_length:
            raise ValueError(
                f"{length} is of a planned run, and the ledger is {ledger!r}: leave it out, and give fit its steps."
            )
        sampler = sampler or poisson_sampler(size, chosen, epsilon, delta, known_length=ledger == "filter")
        if noise is not None:
            sampler = Correlated(sampler, noise, MOST_STEPS)
        if most_examples is not None:
            sampler = dataclasses.replace(sampler, present=present)
        return Spending(epsilon, delta, ledger, chosen, sampler, None)
    # A plan: exactly two of epsilon, noise and length.
    if not isinstance(chosen, Constant):
        raise ValueError(
            f"ledger = 'planned' and policy = {type(chosen).__name__}: what is chosen on the way is not planned; give "
            "ledger='menu', 'filter' or 'odometer'."
        )
    if epsilon is not None and has_noise and has_length:
        raise ValueError(
            f"epsilon = {epsilon}, noise_multiplier = {chosen.noise_multiplier:g} and {length} are all "
            "given, and any two of them fix the third: leave one out; or give ledger='filter' and fit its steps."
        )
    rate = chosen.sampling_rate
    steps = steps if epochs is None else steps_of(epochs, rate)
    if steps is not None and steps > MOST_COUNT:
        raise ValueError(f"{length} are {steps:.3g} steps at a sampling rate of {rate:.3g}: plan at most {MOST_COUNT}.")

    # Plain numbers, so that an equal plan is found in the cache.
    multiplier = float(chosen.noise_multiplier) if has_noise else None
    steps = None if steps is None else int(steps)
    solve = _plan if sampler or noise or queries else _planned_once
    made = solve(sampler, noise, size, queries, float(rate), delta, epsilon, multiplier, steps)
    if most_examples is not None:
        drawn: Any = made.sampler
        made = dataclasses.replace(made, sampler=dataclasses.replace(drawn, present=present))
    return Spending(made.epsilon, delta, ledger, Constant(made.noise_multiplier, rate), made.sampler, made)


def _check_correlated(strategy: Strategy, policy: Policy, sampler: Any, ledger: Ledger, *, is_open: bool) -> None:
    """Raises where correlated noise has no account with a policy, a sampler, a ledger, or a length that is open."""
    if not isinstance(strategy, Strategy):
        raise TypeError(f"noise = {strategy!r} is no strategy: give one of jaxacct.strategies, such as square_root(8).")
    if not isinstance(policy, Constant):
        raise ValueError(
            f"policy = {type(policy).__name__} and noise are both given: correlated noise is accounted for settings "
            "that are fixed before the first step. Give a noise_multiplier or epochs, or leave noise out."
        )
    if sampler is None:
        if ledger != "planned":
            raise ValueError(f"noise is given, and the ledger is {ledger!r}: give sampler=CyclicPoissonSampler(...).")
        return
    bands = strategy.bands(MOST_STEPS)
    if is_open and not isinstance(separating(sampler).participation(1, bands), CyclicPoisson):
        raise ValueError(
            "noise without amplification is one mechanism from the first step to the last, whose number it has to "
            "know: give steps or epochs, with epsilon or noise_multiplier, and no other ledger than 'planned'."
        )


def _plan(
    sampler: Any, strategy: Strategy | None, size: int, queries: tuple[SideQuery, ...], rate: float, delta: float,
    epsilon: float | None, noise: float | None, steps: int | None,
) -> Plan:  # fmt: skip
    """Returns the plan for the sampler that is given, or a Poisson sampler at that rate; cyclic for a strategy."""

    # The sampler for an epsilon and a length; with a strategy, one group for each band, or the sampler given.
    def draw(epsilon: float, steps: int) -> Any:
        if strategy is None:
            return sampler or PoissonSampler.for_budget(size, rate, epsilon=epsilon, delta=delta, steps=steps)
        groups = strategy.bands(MOST_COUNT)
        if sampler is None and groups * rate > 1:
            raise ValueError(
                f"noise has {groups} bands, and batches are {rate:.3g} of the data: more than one of as many groups. "
                "Give fewer bands or smaller batches; or a sampler, which need not amplify: CyclicPoissonSampler at "
                "rate 1, or RandomAllocationSampler."
            )
        cyclic = sampler or CyclicPoissonSampler.for_budget(
            size, groups, groups * rate, epsilon=epsilon, delta=delta, steps=steps
        )
        return Correlated(cyclic, strategy, steps)

    return plan(draw, delta, epsilon=epsilon, noise_multiplier=noise, steps=steps, queries=queries)


_planned_once = functools.lru_cache(maxsize=64, typed=True)(_plan)
""":func:`_plan` with a cache, for plans of numbers alone: trainers that differ in their seeds, or one that takes a
run up again, solve theirs once."""


def items_of(menu: Items, policy: Policy, sampler: Any) -> Items:
    """Returns the menu that is given, or a menu of the settings that a policy chooses among, with its query."""
    if menu:
        return menu
    assert isinstance(policy, FinitePolicy)
    varies = isinstance(sampler, PoissonSampler) and len({rate for _, rate in policy.choices}) > 1
    steps = [
        sampler.mechanism_at(noise, rate) if varies else sampler.mechanism(noise) for noise, rate in policy.choices
    ]
    return (*steps, *([policy.query] if policy.query is not None else []))


# ----------------------------------------------------------------------------------------------------
# Other names: groups of settings, which an earlier version had, and names that other libraries have for a setting.
# ----------------------------------------------------------------------------------------------------


def _group(name: str, **defaults: Any) -> Any:
    """Returns the class of a group of settings: a frozen dataclass that warns when it is made."""

    def warn(self: Any) -> None:
        said = f"{name} is deprecated: give {', '.join(defaults)} to DPTrainer by themselves."
        warnings.warn(said, DeprecationWarning, stacklevel=3)

    fields = [(field, object, dataclasses.field(default=default)) for field, default in defaults.items()]
    text = f"A group of settings, which :class:`.DPTrainer` now takes by themselves: {', '.join(defaults)}. Deprecated."
    namespace = {"__post_init__": warn, "__doc__": text, "__module__": __name__}
    return dataclasses.make_dataclass(name, fields, namespace=namespace, frozen=True)


Budget = _group("Budget", epsilon=None, delta=None, ledger=None, steps=None, epochs=None, queries=(), menu=())
Batches = _group("Batches", sampling_rate=None, expected_batch_size=None, sampler=None, most_examples=None)
Placement = _group("Placement", microbatch_size=32, ghost=True, devices=None, mesh=None, rules=None, row_axes=None)
Augmentation = _group("Augmentation", augment=None, views=1)

GROUPS = {"budget": Budget, "batches": Batches, "placement": Placement, "augmentation": Augmentation}
"""Classes of the groups, by the names of the arguments that took them."""

P = ParamSpec("P")
"""Parameters of what :func:`takes_earlier_names` decorates."""


def takes_earlier_names(init: Callable[P, None]) -> Callable[P, None]:
    """Returns ``init``, which also takes settings under the names of earlier versions, with a DeprecationWarning.

    Raises TypeError for an unknown name, and says what is meant where another library has it.
    """
    # Names that other libraries have for arguments of the trainer, and the trainer's. For an error message only.
    other_names = {
        **dict.fromkeys(("max_grad_norm", "l2_norm_clip", "clipping_norm", "clipping_threshold"), "clip_norm"),
        **dict.fromkeys(("batch_size", "lot_size", "logical_batch_size"), "expected_batch_size"),
        **dict.fromkeys(("sample_rate", "rate"), "sampling_rate"),
        **dict.fromkeys(("target_epsilon", "target_delta"), "epsilon and delta"),
        "max_physical_batch_size": "microbatch_size",
    }
    known = inspect.signature(init).parameters

    @functools.wraps(init)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        given: dict[str, Any] = dict(kwargs)
        # Names that are not in the signature are earlier ones, which are replaced and warn, or mistakes.
        for name in sorted(given.keys() - known.keys()):
            if name not in ("clipping", *GROUPS):
                meant = f": {other_names[name]} is meant" if name in other_names else ""
                raise TypeError(f"DPTrainer() got an unexpected keyword argument {name!r}{meant}.")
            if (value := given.pop(name)) is not None:
                given |= _by_present_names(name, value, given)
                message = f"{name} is deprecated: give DPTrainer {'clip_norm' if name == 'clipping' else 'its fields'}."
                warnings.warn(message, DeprecationWarning, stacklevel=2)
        init(*args, **given)

    return wrapper


def _by_present_names(name: str, value: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings that an earlier one stands for, by name; raises where they are ``given`` as well."""
    if name == "clipping":
        return {"clip_norm": rule_of(given.get("clip_norm"), value)}
    kind = GROUPS[name]
    if not isinstance(value, kind):
        raise TypeError(f"{name} is a {type(value).__name__}: give the fields of a {kind.__name__} by themselves.")
    # None is as if nothing were given, unless it is a value beside another default, as of ``microbatch_size``.
    usual = {field.name: field.default for field in dataclasses.fields(kind)}
    if both := [field for field in usual if field in given and not (given[field] is None and usual[field] is None)]:
        and_fields = f"{name} and {', '.join(both)}"
        raise ValueError(f"{and_fields} are both given: leave out {name}, and give its fields by themselves.")
    return dict(vars(value))
