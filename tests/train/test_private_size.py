"""Tests of the unit that a run's guarantee protects, and of the number of examples as a secret of its own."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers.shared import SGD, sharing

import jaxacct as ja
from jaxacct import strategies, train
from jaxacct.certificates.specs import unit_of
from jaxacct.cli import build_parser, training
from jaxacct.train.sampling import PoissonSampler
from jaxacct.train.settings import public_size
from jaxacct.train.trainer import fingerprint

x = np.random.default_rng(0).normal(size=(31, 3)).astype(np.float32)
weights = np.ones(31, np.float32)
weights[-1] = 0.0  # whose gradient is zero


def loss(model, x, weight):
    return weight * jnp.sum(model(x) ** 2)


def trainer(count, *, loss=loss, data=None, **changes):
    given = {"epsilon": 2.0, "delta": 1e-4, "steps": 4, "expected_batch_size": 10, "clip_norm": 1.0, "seed": 3}
    data = (x[:count], weights[:count]) if data is None else data
    return sharing(train.DPTrainer(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), loss, SGD, data, **given | changes))


def parameters_after(made):
    made.fit()
    return jax.tree.map(np.asarray, nnx.state(made.model, nnx.Param))


@pytest.mark.exhaustive
def test_an_example_that_is_not_there_is_one_whose_gradient_is_zero():
    """No statistic tells n from n - 1: with the same keys all that is released is the same, to the bit."""
    with_it, without = (parameters_after(trainer(count, most_examples=40)) for count in (31, 30))
    jax.tree.map(np.testing.assert_array_equal, with_it, without)
    # And where their number is public it is in the rate and the noise, as the guarantee says.
    with_it, without = (trainer(count, epsilon=None, noise_multiplier=2.0) for count in (31, 30))
    assert with_it.sampler.sampling_rate != without.sampler.sampling_rate
    assert "How many there are, 31, is taken as public" in train.guarantee(with_it)


def test_what_is_written_beside_the_weights_does_not_tell_how_many_there_are():
    reports = [train.build_report(trainer(count, most_examples=40), []) for count in (31, 30)]
    assert reports[0] == reports[1]
    assert reports[0]["config"]["num_examples"] == 40
    assert "protected, too: at most 40" in reports[0]["final"]["guarantee"]
    prints = [fingerprint(trainer(count, most_examples=40)) for count in (31, 30)]  # what checkpoints hold
    assert prints[0] == prints[1]
    plans = [trainer(count, most_examples=40).plan for count in (31, 30)]
    assert repr(plans[0]) == repr(plans[1])


def test_gradients_of_a_loop_of_ones_own_do_not_tell_it_either():
    private, fewer = (
        train.PrivateGradients.planned(
            lambda w, x: jnp.sum((w - x) ** 2), count, epsilon=2.0, delta=1e-4, epochs=1, expected_batch_size=10,
            clip_norm=1.0, most_examples=40,
        )
        for count in (31, 30)
    )  # fmt: skip
    assert repr(private.plan) == repr(fewer.plan)
    state = private.start(5)
    (indices, mask), (others, lower) = private.batch(state), fewer.batch(state)
    np.testing.assert_array_equal(indices[mask & (indices < 30)], others[lower])
    # What is made of a batch is the same program: nothing in it knows how many there are.
    given = jnp.zeros(3), state, (jnp.zeros((len(mask), 3)),), mask
    jaxprs = [re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(one.gradient)(*given))) for one in (private, fewer)]
    assert jaxprs[0] == jaxprs[1]


def test_what_the_command_makes_of_a_table_does_not_tell_it(tmp_path):
    def of_table(count, *options):
        np.savez(tmp_path / "rows.npz", x=x[:count], y=np.arange(count) % 2)
        arguments = build_parser().parse_args([
            "train", "--data", str(tmp_path / "rows.npz"), "--label", "y", "--classes", "2", "--bounds=-4:4",
            "--batch-size", "10", "--most-examples", "40", *options,
        ])  # fmt: skip
        dataset, described = training.load_data(arguments)
        made, steps, config = training._trainer(arguments, dataset)
        return steps, config | described, repr(made.plan), repr(made.policy), fingerprint(made)

    assert of_table(31) == of_table(30)
    adaptive = "--policy", "adaptive-batch", "--noise-multiplier", "2", "--ledger", "filter"
    assert of_table(31, *adaptive) == of_table(30, *adaptive)
    with pytest.raises(ValueError, match="--test-size holds out rows"):
        of_table(31, "--test-size", "5")


def test_only_those_present_are_drawn_and_as_often():
    whole, part = (PoissonSampler(40, 0.25, 41, present=present) for present in (None, 31))
    draws = jax.jit(lambda key: (whole.draw(key), part.draw(key), *part.sample(key), *part.sample_at(key, 0, 0.25)))
    for key in jax.random.split(jax.random.key(0), 20):
        of_whole, of_part, indices, mask, others, lower = map(np.asarray, draws(key))
        assert np.array_equal(of_whole[:31], of_part[:31])
        assert not of_part[31:].any()
        assert indices[mask].max(initial=0) < 31
        assert others[lower].max(initial=0) < 31
    assert part.expected_batch_size == whole.expected_batch_size == 10.0
    assert part.overflow_probability == whole.overflow_probability


def test_a_run_of_users_says_so():
    records, weights = train.users_as_examples((x, np.ones(31, np.float32)), list("abcdefghijklmno") * 2 + ["a"], 2)
    made = trainer(15, loss=train.mean_over_examples(loss), data=(*records, weights), expected_batch_size=5)
    assert train.build_report(made, [])["config"]["unit"] == "one user with all its examples"
    assert "Neighbours: one user with all its examples added or removed." in train.guarantee(made)


@pytest.mark.exhaustive
def test_a_run_that_a_paid_answer_may_have_ended_claims_its_whole_plan():
    stop = train.SparseVector(ja.AboveThreshold(2.0, 4.0), threshold=0.0, sensitivity=1.0)
    made = trainer(31, queries=(stop.side_query(4),), seed=None)
    made.fit(2)
    assert stop.above(1e9)
    assert not made.stopping_was_planned
    assert train.certified_epsilon(made).upper == made.plan.certified.upper
    made.fit(2)
    assert not made.stopping_was_planned  # another end than the first


def test_units_of_a_spec_are_those_that_all_parts_have():
    report, bare = {"report": {"config": {"unit": "one user"}}}, {"type": "gaussian", "noise_multiplier": 1.0}
    assert unit_of({"parts": [report, report]}) == "one user"
    assert unit_of({"parts": [report, bare]}) == unit_of({"parts": [bare]}) == "one record"
    assert unit_of({"parts": [bare], "unit": "one person"}) == "one person"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"most_examples": 30}, "most_examples = 30 is less than data has.* give a larger number"),
        ({"most_examples": 40.0}, "most_examples = 40.0"),
        (
            {"most_examples": 40, "sampler": PoissonSampler(31, 0.3, 32), "expected_batch_size": None},
            "most_examples and sampler are both given",
        ),
        (
            {"most_examples": 40, "noise": strategies.BandedToeplitz(np.array([1.0, 0.5]))},
            "correlated noise takes the size as public",
        ),
    ],
)
def test_messages(changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        trainer(31, **changes)


@pytest.mark.parametrize("present", [41, 30.5])
def test_more_are_present_than_there_may_be_or_no_whole_number(present):
    with pytest.raises(ValueError, match=f"present = {present} examples of at most num_examples = 40"):
        PoissonSampler(40, 0.25, 41, present=present)


def test_numbers_of_examples_are_whole_and_may_be_numpys():
    assert type(public_size(31, np.int64(40))) is int
    with pytest.raises(ValueError, match="num_examples = 0 is not a size"):
        train.PrivateGradients.planned(
            loss, 0, epsilon=2.0, delta=1e-4, epochs=1, expected_batch_size=10, most_examples=40
        )
