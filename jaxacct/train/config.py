"""Configurations of a run: a frozen dataclass for each kind, whose ``resolve`` leaves nothing of its budget open.

* :class:`PlannedRun`: a fixed plan spends all of the budget, and two of epsilon, noise multiplier and length make it;
* :class:`FilteredRun`: a Rényi filter, or an odometer, pays for whatever each step chooses;
* :class:`MenuRun`: a menu filter, or an odometer of a menu, pays for choices among finitely many settings;
* :class:`OpenRun`: a ledger of the caller's pays for noise that a loop chooses step by step;
* :class:`RunBudget`, :class:`TrainingBudget`: what ``resolve`` returns: sampler, noise, ledger and plan;
* :func:`run_of`: the configuration that the keywords of :class:`.DPTrainer` mean.

The fields are the keywords of :class:`.DPTrainer`, which explains them; a kind has those that mean something for it.
Each configuration checks its fields when it is made, and :meth:`RunConfig.resolve` what depends on the data's size.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from jaxacct import validation
from jaxacct.display import steps_of
from jaxacct.filters import MenuFilter, RenyiFilter
from jaxacct.ledger import Ledger
from jaxacct.mechanisms import Mechanism
from jaxacct.menus import certify
from jaxacct.numerics.pytrees import takes_python_values
from jaxacct.odometers import MenuOdometer, VilleOdometer
from jaxacct.policies import Constant, FinitePolicy, Policy
from jaxacct.strategies import BufferedStrategy, CyclicPoisson, Strategy
from jaxacct.train.ownership import owned_settings
from jaxacct.train.planned import Plan, PlannedLedger, SideQuery, delta_left, plan, share_of_pass
from jaxacct.train.sampling import Correlated, CyclicPoissonSampler, PoissonSampler, Sampler
from jaxacct.train.sampling.correlated import bins_of, separating
from jaxacct.train.settings import check_one, drawn_rate, public_size
from jaxacct.validation import MOST_COUNT

LedgerName = Literal["planned", "menu", "filter", "odometer"]
"""Kinds of ledgers, as :class:`.DPTrainer` explains them."""

Items = Sequence[Mechanism | tuple[Mechanism, int]]
"""Menu: mechanisms of single runs, each by itself or with the number of runs that is bought together."""

MOST_STEPS = 10**6
"""Number of steps over which cut batches are paid for where the run's length is not known before. Sound for any value,
for such a run ends after as many (:attr:`.DPTrainer.horizon`); a larger one costs capacity, or delta."""


# ----------------------------------------------------------------------------------------------------
# Budgets: what a configuration resolves to.
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunBudget:
    """The sampler and the ledger of a run, with nothing left open.

    Attributes:
        sampler: draws the batches; a :class:`.Correlated` also says how the noise of steps is correlated.
        ledger: pays for each step, before the first.
        plan: the plan that fixes noise and length; None where the ledger pays for what is chosen on the way.
    """

    sampler: Sampler
    ledger: PlannedLedger | Ledger
    plan: Plan | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingBudget(RunBudget):
    """A :class:`RunBudget` whose noise is known as well: all that a trainer needs.

    Attributes:
        policy: the noise multiplier and the sampling rate of each step.
        kind: name of the ledger's kind.
        epsilon: the budget; the plan's cost where noise and length are given.
        delta: the budget.
        horizon: largest number of steps of the run: cut batches are paid for over that many.
        delta_for_accounting: part of delta that cut batches and the law of drawn noise leave, which is the ledger's.
        samples: integer noise values that one step draws at most; 0: noise is drawn in float64.
    """

    policy: Policy
    kind: LedgerName
    epsilon: float
    delta: float
    horizon: int
    delta_for_accounting: float
    samples: int = 0


# ----------------------------------------------------------------------------------------------------
# Configurations.
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RunConfig(abc.ABC):
    """The base of configurations: the settings that all runs of a trainer share, as :class:`.DPTrainer` has them.

    It says what one run may spend: each trainer or loop that takes it spends as much again.

    Attributes:
        epsilon: budget of the whole run.
        delta: budget of the whole run; needed.
        noise_multiplier: noise multiplier of all steps.
        expected_batch_size: expected size of Poisson sampled batches; or
        sampling_rate: the same over the number of examples; or
        sampler: one of :mod:`jaxacct.train.sampling`.
        most_examples: a public number that the data has at most; None: the number of examples is public.
        noise: correlates the noise of steps; None: it is independent.

    Raises ValueError or TypeError where a setting is out of range, or too little or too much is given.
    """

    epsilon: float | None = None
    delta: float | None = None
    noise_multiplier: float | None = None
    expected_batch_size: float | None = None
    sampling_rate: float | None = None
    sampler: Sampler | None = None
    most_examples: int | None = None
    noise: Strategy | None = None

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            check_one(self.epsilon, "epsilon")
            validation.check_positive(self.epsilon, "epsilon")
        if self.delta is None:
            raise TypeError("delta missing: give the probability that the guarantee leaves open, such as delta=1e-6.")
        check_one(self.delta, "delta")
        validation.check_delta(self.delta)
        if self.sampler is not None and not hasattr(self.sampler, "expected_batch_size"):
            raise TypeError(f"sampler is a {type(self.sampler).__name__}: give one of jaxacct.train.sampling.")
        if isinstance(self.sampler, Correlated):  # another trainer's, say: by itself it would not correlate any noise
            raise ValueError(
                "sampler is a Correlated, which says what is accounted and draws no noise: give the trainer its "
                "batches as sampler and its strategy as noise."
            )
        if self.noise_multiplier is not None:
            check_one(self.noise_multiplier, "noise_multiplier")
            validation.check_noise_multiplier(self.noise_multiplier)

    @abc.abstractmethod
    def resolve(self, size: int, samples: int = 0) -> TrainingBudget:
        """Returns the budget of a run on ``size`` examples, with nothing left open.

        ``samples``: integer noise values that one step draws at most, which delta pays for; 0: noise is of float64.

        Raises ValueError where the settings do not fit the size, or the budget pays for no such run.
        """

    @property
    def against_integers(self) -> str:
        """Why noise cannot be drawn in integers (:mod:`jaxacct.train.integer_noise`); empty where it can."""
        return against_integers(self.sampler, self.noise)

    def _public_size(self, present: int) -> int:
        """Returns the public number of examples of data of which so many are present."""
        size = public_size(present, self.most_examples)
        if self.most_examples is not None and self.sampler is not None:
            raise ValueError("most_examples and sampler are both given: give PoissonSampler(..., present=...).")
        if self.noise is not None and self.most_examples is not None:
            raise ValueError(
                f"most_examples = {size} and noise are both given: correlated noise takes the size as public."
            )
        return size

    def _with_present(self, sampler: Any, present: int) -> Any:
        """Returns a sampler for the public size as the one that draws from the ``present`` examples."""
        return sampler if self.most_examples is None else dataclasses.replace(sampler, present=present)

    def _constant(self, size: int) -> Constant:
        """Returns the policy of constant settings; its noise is 1 where a plan will solve for the noise."""
        noise = 1.0 if self.noise_multiplier is None else float(self.noise_multiplier)
        if self.sampler is None:
            return Constant(noise, drawn_rate(self.sampling_rate, self.expected_batch_size, size))
        if self.sampling_rate is not None or self.expected_batch_size is not None:
            raise ValueError("sampler has its own batch size: leave out sampling_rate and expected_batch_size.")
        return Constant(noise, min(self.sampler.expected_batch_size / self.sampler.num_examples, 1.0))


@takes_python_values
@dataclass(frozen=True, kw_only=True)
class PlannedRun(RunConfig):
    """A run whose settings do not change, and whose plan spends all of the budget.

    Exactly two of ``epsilon``, ``noise_multiplier`` and a length (``epochs`` or ``steps``) are given; the third
    follows. The fields ``epsilon``, ``delta``, ``noise_multiplier``, ``expected_batch_size``, ``sampling_rate``,
    ``sampler``, ``most_examples`` and ``noise`` are those of :class:`RunConfig`.

    Attributes:
        epochs: length in expected passes over the data; or
        steps: the same as a number of steps.
        queries: all else that is released of the data; the plan pays for it with the steps.

    Formal guarantee: the plan's (:mod:`jaxacct.train.planned`).

    >>> made = PlannedRun(epsilon=1.0, delta=1e-3, epochs=2, sampling_rate=0.1).resolve(200)
    >>> made.kind, made.plan.steps, made.policy.noise_multiplier == made.plan.noise_multiplier
    ('planned', 20, True)
    """

    epochs: float | None = None
    steps: int | None = None
    queries: tuple[SideQuery, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None:
            object.__setattr__(self, "steps", int(validation.check_count(self.steps, "steps", "the steps of a run")))
        if self.epochs is not None:
            check_one(self.epochs, "epochs")
            validation.check_positive(self.epochs, "epochs")
            if self.steps is not None:
                raise ValueError(f"steps = {self.steps} and epochs = {self.epochs} are both given: give one.")
        object.__setattr__(self, "queries", _check_queries(self.queries))
        has_length, has_noise = self.length is not None, self.noise_multiplier is not None
        _check_enough(self.epsilon, has_noise=has_noise, has_length=has_length)
        if self.noise is not None:
            _check_correlated(self.noise, self.sampler, "planned", is_open=not has_length)
        if self.epsilon is not None and has_noise and has_length:
            raise ValueError(
                f"epsilon = {self.epsilon}, noise_multiplier = {self.noise_multiplier:g} and {self.length} are all "
                "given, and any two of them fix the third: leave one out; or give ledger='filter' and fit its steps."
            )

    @property
    def length(self) -> str | None:
        """The length as it is given, in words; None where it follows."""
        if self.steps is not None:
            return f"steps = {self.steps}"
        return None if self.epochs is None else f"epochs = {self.epochs}"

    def resolve(self, size: int, samples: int = 0) -> TrainingBudget:
        present, size = size, self._public_size(size)
        rate = float(self._constant(size).sampling_rate)
        share = rate if self.sampler is None else min(share_of_pass(self.sampler), 1.0)
        steps = self.steps if self.epochs is None else steps_of(self.epochs, share)
        if steps is not None and steps > MOST_COUNT:
            raise ValueError(
                f"{self.length} are {steps:.3g} steps at a sampling rate of {rate:.3g}: plan at most {MOST_COUNT}."
            )
        # The cache knows an equal plan by plain numbers.
        delta = float(self.delta)  # type: ignore[arg-type]
        epsilon, noise = (None if one is None else float(one) for one in (self.epsilon, self.noise_multiplier))
        steps = None if steps is None else int(steps)
        sampler, strategy = owned_settings(self.sampler, "sampler"), owned_settings(self.noise, "noise")
        solve: Any = _plan if sampler or strategy or self.queries else _planned_once
        made = solve(sampler, strategy, size, self.queries, rate, delta, epsilon, noise, steps, samples)
        if self.most_examples is not None:
            made = dataclasses.replace(made, sampler=self._with_present(made.sampler, present))
        return TrainingBudget(
            sampler=made.sampler, ledger=made.ledger(), plan=made, policy=Constant(made.noise_multiplier, rate),
            kind="planned", epsilon=made.epsilon, delta=delta, horizon=made.steps,
            delta_for_accounting=made.delta_for_accounting, samples=samples,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PolicyRun(RunConfig):
    """The base of runs that a policy leads and a ledger ends: constant noise and rate are a policy as well.

    Attributes:
        policy: chooses noise and sampling rate in place of ``noise_multiplier`` and the size of batches.
        odometer: whether an odometer pays, which ends the run before it reads more than ``epsilon``.
    """

    policy: Policy | None = None
    odometer: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_policy(self.policy, vars(self))
        _check_enough(self.epsilon, has_noise=self.policy is not None or self.noise_multiplier is not None)
        if self.noise is not None:
            _check_correlated(self.noise, self.sampler, self.kind, self.policy, is_open=True)

    _kind: ClassVar[LedgerName]

    @property
    def kind(self) -> LedgerName:
        """Name of the ledger's kind."""
        return "odometer" if self.odometer else self._kind

    @abc.abstractmethod
    def _ledger(self, policy: Policy, sampler: Any, delta: float) -> Ledger:
        """Returns the ledger before the first step; ``delta`` is what cut batches leave of the run's."""

    def _horizon(self, policy: Policy, sampler: Any) -> int:
        """Returns the largest number of steps of the run."""
        return MOST_STEPS

    def resolve(self, size: int, samples: int = 0) -> TrainingBudget:
        present, size = size, self._public_size(size)
        policy, sampler = self._policy(size), owned_settings(self.sampler, "sampler")
        epsilon, delta = float(self.epsilon), float(self.delta)  # type: ignore[arg-type]
        # The ledger ends the run: its sampler is cut for the longest one that it may grant.
        if sampler is None:
            known = self.kind == "filter"
            sampler = poisson_sampler(size, policy, epsilon, delta, known_length=known)
        if self.noise is not None:
            sampler = Correlated(sampler, owned_settings(self.noise, "noise"), MOST_STEPS)
        sampler = self._with_present(sampler, present)
        horizon = self._horizon(policy, sampler)
        left = delta_left(sampler, horizon, epsilon, delta, samples)
        return TrainingBudget(
            sampler=sampler, ledger=self._ledger(policy, sampler, left), policy=policy, kind=self.kind,
            epsilon=epsilon, delta=delta, horizon=horizon, delta_for_accounting=left, samples=samples,
        )  # fmt: skip

    def _policy(self, size: int) -> Policy:
        """Returns a copy of the policy, constant settings as one."""
        if self.policy is None:
            return self._constant(size)
        planned = getattr(self.policy, "num_examples", size)
        if planned != size:
            raise ValueError(
                f"policy is for num_examples = {planned}, and {size} were planned for: its rates would be others."
            )
        if isinstance(self.policy, Constant):
            return Constant(float(self.policy.noise_multiplier), float(self.policy.sampling_rate))
        return owned_settings(self.policy, "policy")


@takes_python_values
@dataclass(frozen=True, kw_only=True)
class FilteredRun(PolicyRun):
    """A run whose steps a Rényi filter pays for, whatever they choose; or an odometer.

    ``epsilon``, ``delta``, ``noise_multiplier``, ``expected_batch_size``, ``sampling_rate``, ``sampler``,
    ``most_examples`` and ``noise`` are those of :class:`RunConfig`, ``policy`` and ``odometer`` those of
    :class:`PolicyRun`.

    Formal guarantee: that of :class:`~jaxacct.filters.RenyiFilter`, or of :class:`~jaxacct.odometers.VilleOdometer`.

    >>> made = FilteredRun(epsilon=1.0, delta=1e-3, noise_multiplier=3.0, sampling_rate=0.1).resolve(200)
    >>> made.kind, made.plan, made.horizon > 10
    ('filter', None, True)
    """

    _kind = "filter"

    def _ledger(self, policy: Policy, sampler: Any, delta: float) -> Ledger:
        if self.odometer:
            return VilleOdometer(delta)
        return RenyiFilter(float(self.epsilon), delta)  # type: ignore[arg-type]

    def _horizon(self, policy: Policy, sampler: Any) -> int:
        if self.odometer or not isinstance(policy, Constant):
            return MOST_STEPS
        ledger: Any = self._ledger(policy, sampler, float(self.delta))  # type: ignore[arg-type]
        runs = int(ledger.remaining(sampler.mechanism(policy.noise_multiplier), relation=sampler.relation))
        return runs * sampler.steps_per_run


@takes_python_values
@dataclass(frozen=True, kw_only=True)
class MenuRun(PolicyRun):
    """A run whose steps are chosen among finitely many settings, which a menu prices.

    ``epsilon``, ``delta``, ``noise_multiplier``, ``expected_batch_size``, ``sampling_rate``, ``sampler``,
    ``most_examples`` and ``noise`` are those of :class:`RunConfig`, ``policy`` and ``odometer`` those of
    :class:`PolicyRun`.

    Attributes:
        menu: what may be spent (:class:`~jaxacct.filters.MenuFilter`). Empty: the policy's choices and its query.

    Formal guarantee: that of :class:`~jaxacct.filters.MenuFilter`, or of :class:`~jaxacct.odometers.MenuOdometer`.

    >>> made = MenuRun(epsilon=1.0, delta=1e-3, noise_multiplier=3.0, sampling_rate=0.1).resolve(200)
    >>> made.kind, len(made.ledger.menu.items)
    ('menu', 1)
    """

    menu: Items = ()

    _kind = "menu"

    def __post_init__(self) -> None:
        _check_menu(self.menu)
        if self.policy is not None and not (self.menu or has_choices(self.policy)):
            raise ValueError(
                f"ledger = 'menu', and {type(self.policy).__name__} does not say among which settings it chooses: give "
                "menu=(...), mechanisms that dominate them, or ledger='filter'."
            )
        super().__post_init__()

    def _ledger(self, policy: Policy, sampler: Any, delta: float) -> Ledger:
        items = items_of(self.menu, policy, sampler)
        menu = certify(float(self.epsilon), delta, items, relation=sampler.relation)  # type: ignore[arg-type]
        return MenuOdometer.of(menu) if self.odometer else MenuFilter.of(menu)


@dataclass(frozen=True)
class OpenRun:
    """A run of a loop that chooses the noise of each step, for which a ledger of the caller's pays.

    Attributes:
        ledger: a filter of :mod:`jaxacct.filters` or an odometer of :mod:`jaxacct.odometers`, before the first step.
            What cut batches cost, ``sampler.overflow_delta``, and integer noise, :func:`.noise_delta`, the caller has
            taken off its delta.
        sampler: one of :mod:`jaxacct.train.sampling` whose runs are single steps, each of which is paid for by itself.

    Formal guarantee: the ledger's, and the sampler's for cut batches.

    Raises TypeError or ValueError where the ledger or the sampler cannot pay or be paid for step by step.

    >>> sampler = PoissonSampler(num_examples=100, sampling_rate=0.1, capacity=101)
    >>> OpenRun(RenyiFilter(1.0, 1e-5), sampler).resolve(100).plan is None
    True
    """

    ledger: Ledger
    sampler: Sampler
    against_integers: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if not hasattr(self.sampler, "steps_per_run"):
            raise TypeError(f"sampler is a {type(self.sampler).__name__}: give one of jaxacct.train.sampling.")
        if isinstance(self.sampler, Correlated):
            raise ValueError("sampler is of correlated noise, whose steps are one mechanism: give a plan of all of it.")
        if self.sampler.steps_per_run > 1:
            # The first step pays for the whole run, at its own noise: a later one could take less.
            raise ValueError(
                f"sampler draws runs of {self.sampler.steps_per_run} steps, each of which is one mechanism of one "
                "noise: give a plan of them (PrivateGradients.planned), or a sampler whose steps are paid for one by "
                "one, such as PoissonSampler."
            )
        if not isinstance(self.ledger, Ledger):
            # A plan's ledger counts steps of the plan's noise, and would not look at the one that is chosen.
            raise TypeError(
                f"ledger is a {type(self.ledger).__name__}, which does not pay for noise that is chosen at each step: "
                "give a filter of jaxacct.filters or an odometer of jaxacct.odometers."
            )

    def resolve(self, size: int, samples: int = 0) -> RunBudget:
        """Returns the budget of a run on ``size`` examples, which the sampler knows by itself.

        What ``samples`` values of integer noise a step cost, :func:`.noise_delta`, the caller has taken off delta, too.
        """
        return RunBudget(self.sampler, self.ledger)


# ----------------------------------------------------------------------------------------------------
# Choice of the configuration by keywords.
# ----------------------------------------------------------------------------------------------------

TrainerRun = PlannedRun | FilteredRun | MenuRun
"""Configurations whose noise is known without a loop of the caller's: those of a trainer."""

KEYWORDS = {one.name for kind in get_args(TrainerRun) for one in dataclasses.fields(kind)} - {"odometer"} | {"ledger"}
"""Keywords of :class:`.DPTrainer` that :func:`run_of` takes: the fields of the kinds, and ``ledger``, which names the
kind."""


def run_of(run: TrainerRun | None = None, /, **keywords: Any) -> TrainerRun:
    """Returns ``run``, or the configuration that ``given`` keywords of :class:`.DPTrainer` mean.

    Its kind is that of the ledger that is named, else a menu for finitely many choices, a plan for constant settings, a
    filter else.

    Raises ValueError or TypeError where a keyword is out of range, is none of the kind's, or is given beside ``run``.

    >>> run_of(ledger="odometer", epsilon=1.0, delta=1e-3, noise_multiplier=3.0, sampling_rate=0.1).kind
    'odometer'
    """
    if run is None:
        return _choose_kind(**keywords)
    if not isinstance(run, TrainerRun):
        raise TypeError(f"run is a {type(run).__name__}: give a PlannedRun, a FilteredRun or a MenuRun.")
    if both := [name for name, value in keywords.items() if value is not None and value != ()]:
        raise ValueError(f"run and {', '.join(both)} are both given: a {type(run).__name__} has them as its fields.")
    return run


def _choose_kind(
    *,
    ledger: LedgerName | None = None,
    policy: Policy | None = None,
    menu: Items = (),
    epochs: float | None = None,
    steps: int | None = None,
    queries: tuple[SideQuery, ...] = (),
    **shared: Any,
) -> TrainerRun:
    """Returns the configuration of the kind that keywords mean; ``shared`` are those of :class:`RunConfig`."""
    name = _name_ledger(ledger, policy, menu)
    if name == "planned":
        if policy is not None:
            shared |= _settings_of(policy, shared)
        return PlannedRun(epochs=epochs, steps=steps, queries=queries, **shared)
    shared |= {"policy": policy, "odometer": name == "odometer"}
    run = MenuRun(menu=menu, **shared) if menu or name == "menu" else FilteredRun(**shared)
    if queries:
        raise ValueError(
            f"queries = {queries} are of a planned run, and the ledger is {name!r}: leave them out, and "
            "release them in a loop of your own, which spends them from its ledger (PrivateGradients.paid_by)."
        )
    if steps is not None or epochs is not None:
        length = f"epochs = {epochs}" if steps is None else f"steps = {steps}"
        raise ValueError(
            f"{length} is of a planned run, and the ledger is {name!r}: leave it out, and give fit its steps."
        )
    return run


def _name_ledger(ledger: LedgerName | None, policy: Policy | None, menu: Items) -> LedgerName:
    """Returns the kind of ledger that is named, or else the usual one for the settings."""
    if ledger is not None:
        validation.check_one_of(ledger if isinstance(ledger, str) else repr(ledger), "ledger", get_args(LedgerName))
    _check_menu(menu)
    if menu and ledger in ("planned", "filter"):
        raise ValueError(f"menu is given, and the ledger is {ledger!r}: give 'menu' or 'odometer', or none.")
    if ledger is not None or menu:
        return ledger or "menu"
    if policy is None or isinstance(policy, Constant):
        return "planned"
    return "menu" if has_choices(policy) else "filter"


def _settings_of(policy: Policy, keywords: Mapping[str, Any]) -> dict[str, float]:
    """Returns the noise and the rate of a constant policy, for a plan; raises ValueError for another policy."""
    _check_policy(policy, keywords)
    if not isinstance(policy, Constant):
        raise ValueError(
            f"ledger = 'planned' and policy = {type(policy).__name__}: what is chosen on the way is not planned; give "
            "ledger='menu', 'filter' or 'odometer'."
        )
    return {"noise_multiplier": float(policy.noise_multiplier), "sampling_rate": float(policy.sampling_rate)}


# ----------------------------------------------------------------------------------------------------
# Checks of single settings, and what follows from them.
# ----------------------------------------------------------------------------------------------------


def has_choices(policy: Any) -> bool:
    """Returns whether a policy says among which settings it chooses."""
    return isinstance(policy, FinitePolicy) and bool(policy.choices)


def _check_policy(policy: Policy | None, settings: Mapping[str, Any]) -> None:
    """Raises ValueError where a policy is ``given`` settings that are its own: noise, or the size of batches."""
    if policy is None:
        return
    if settings.get("noise_multiplier") is not None:
        raise ValueError("give exactly one of noise_multiplier and policy.")
    if any(settings.get(name) is not None for name in ("sampling_rate", "expected_batch_size", "sampler")):
        raise ValueError("policy has its own sampling rate: leave out sampling_rate, expected_batch_size, sampler.")


def _check_menu(menu: Any) -> None:
    if not isinstance(menu, (tuple, list)):
        raise TypeError(f"menu = {menu!r} is a {type(menu).__name__}: give pairs of mechanism and count.")


def _check_queries(queries: Any) -> tuple[SideQuery, ...]:
    """Returns the side queries as a tuple; raises where one is no query, or its interval is no count."""
    for query in queries:
        if not isinstance(query, SideQuery):
            raise TypeError(f"queries has a {type(query).__name__}: give a tuple of jaxacct.train.SideQuery.")
    meaning = "the steps for one release"
    return tuple(query._replace(every=validation.check_count(query.every, "every", meaning)) for query in queries)


def _check_enough(epsilon: float | None, *, has_noise: bool, has_length: bool = False) -> None:
    """Raises where fewer than two of epsilon, noise and length are known; only a plan has a length."""
    if epsilon is None and not (has_noise and has_length):
        raise TypeError(
            "epsilon missing: give it; or else, for a planned run of constant noise, noise_multiplier with epochs or "
            "steps."
        )
    if not has_noise and not has_length:
        raise ValueError(
            "give exactly one of noise_multiplier and policy; or else, for a planned run of constant noise, epsilon "
            "with epochs or steps."
        )


def _check_correlated(
    strategy: Strategy, sampler: Any, ledger: LedgerName, policy: Policy | None = None, *, is_open: bool
) -> None:
    """Raises where correlated noise has no account with a policy, a sampler, a ledger, or a length that is open."""
    if not isinstance(strategy, Strategy):
        raise TypeError(f"noise = {strategy!r} is no strategy: give one of jaxacct.strategies, such as square_root(8).")
    if not (policy is None or isinstance(policy, Constant)):
        raise ValueError(
            f"policy = {type(policy).__name__} and noise are both given: correlated noise is accounted for settings "
            "that are fixed before the first step. Give a noise_multiplier or epochs, or leave noise out."
        )
    if sampler is None:
        if ledger != "planned":
            raise ValueError(f"noise is given, and the ledger is {ledger!r}: give sampler=CyclicPoissonSampler(...).")
        return
    if is_open and not _is_amplified(sampler, strategy):
        raise ValueError(
            "noise without amplification is one mechanism from the first step to the last, whose number it has to "
            "know: give steps or epochs, with epsilon or noise_multiplier, and no other ledger than 'planned'."
        )


def _is_amplified(sampler: Any, strategy: Strategy) -> bool:
    """Returns whether correlated noise on a sampler's batches is accounted by runs that are sampled apart."""
    participation = separating(sampler).participation(1, strategy.bands(MOST_STEPS))
    return isinstance(participation, CyclicPoisson) or bins_of(sampler, strategy, 1) is not None


def against_integers(sampler: Any, strategy: Strategy | None) -> str:
    """Returns why the noise of a strategy on a sampler's batches cannot be drawn in integers; empty where it can."""
    if strategy is None:
        return ""
    if sampler is None or _is_amplified(sampler, strategy):
        return (
            "correlated noise that is amplified by sampling: rounding depends on who was in earlier batches, and its "
            "account needs differences that vanish"
        )
    if not isinstance(strategy, BufferedStrategy):
        return f"the noise of a {type(strategy).__name__}, whose rows are not known: rounding them has no account"
    return ""


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


def poisson_sampler(size: int, policy: Policy, epsilon: float, delta: float, *, known_length: bool) -> PoissonSampler:
    """Returns the sampler at the policy's largest rate, cut for the steps that constant noise pays for, if it is that.

    ``known_length``: whether the ledger ends a run of constant noise after those; otherwise it is cut for the most.
    """
    _, rate = policy.sampling_rates
    steps = MOST_STEPS
    if isinstance(policy, Constant) and known_length:
        steps = affordable_steps(size, rate, policy.noise_multiplier, epsilon=epsilon, delta=delta)
    return PoissonSampler.for_budget(size, rate, epsilon=epsilon, delta=delta, steps=max(steps, 1))


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
# Plans.
# ----------------------------------------------------------------------------------------------------


def _plan(
    sampler: Any, strategy: Strategy | None, size: int, queries: tuple[SideQuery, ...], rate: float, delta: float,
    epsilon: float | None, noise: float | None, steps: int | None, samples: int,
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

    return plan(draw, delta, epsilon=epsilon, noise_multiplier=noise, steps=steps, queries=queries, samples=samples)


_planned_once = functools.lru_cache(maxsize=64, typed=True)(_plan)
""":func:`_plan` with a cache, for plans of numbers alone: trainers that differ in their seeds, or one that takes a
run up again, solve theirs once."""
