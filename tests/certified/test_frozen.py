"""Answers beside those of the frozen file: no contradiction, widths no worse, and a file that has everything in it.

Another processor or compiler may give other bits. What has to stay is that two brackets of one number share a point.
"""

import functools
import inspect

import numpy as np
import pytest

import jaxacct as ja
from bench import frozen
from jaxacct.bounds import Bounds
from jaxacct.mechanisms.mechanism import Mechanism


@functools.cache
def contents():
    return frozen.load()


@functools.cache
def everything():
    return list(frozen.records(contents()))


def parts(description):
    """The descriptions of all mechanisms in one, a tuple's and those within another."""
    if isinstance(description, list):
        return [part for each in description for part in parts(each)]
    if not isinstance(description, dict):
        return []
    return [description, *(part for value in description.values() for part in parts(value))]


def class_of(description):
    """The class that a description makes, by the name of its maker."""
    name = description["make"].partition(".")[0]
    return {"laplace_by_loss": "PrivacyLoss"}.get(name, name)


PUBLIC = {
    name for name in ja.__all__ if inspect.isclass(getattr(ja, name)) and issubclass(getattr(ja, name), Mechanism)
} - {"Mechanism", "RenyiOnly"}


def test_every_mechanism_and_relation_is_in_the_file():
    asked = {(class_of(part), setting.relation) for setting, _ in everything() for part in parts(setting.mechanism)}
    wanted = {(name, relation) for name in PUBLIC for relation in getattr(ja, name).relations}
    assert wanted - asked == set()
    assert len(everything()) >= 4000


def test_every_verb_kind_of_composition_and_option_is_in_the_file():
    settings = [setting for setting, _ in everything()]
    assert {setting.verb for setting in settings} == set(frozen.VERBS)
    assert {option for setting in settings for option in setting.options} == {"points", "tolerance", "field"}
    assert any(isinstance(setting.mechanism, list) for setting in settings)
    assert any(isinstance(setting.steps, list) and isinstance(setting.mechanism, dict) for setting in settings)
    assert any(class_of(setting.mechanism) == "group" for setting in settings if isinstance(setting.mechanism, dict))
    single = [setting.steps for setting in settings if isinstance(setting.steps, int)]
    assert {1, 2, 7} <= set(single)
    assert max(single) >= 10**6


def test_settings_are_those_that_the_seed_draws():
    for family in frozen.families():
        if family.name not in contents()["families"]:
            continue
        asked = contents()["families"][family.name]["settings"]
        most = max(ask.most for ask in family.asks)
        drawn = [[mechanism, steps] for mechanism, steps, _ in frozen.compositions(family, min(most, 8))]
        assert all([mechanism, steps] in [each[:2] for each in asked] for mechanism, steps in drawn[:1]), family.name


def test_every_frozen_answer_is_a_bracket_or_an_error_in_words():
    for setting, found in everything():
        assert found.raised or not frozen.is_nonsense(found), setting
        assert found.raised or len(found.upper), setting
        assert frozen.Answer.from_data(found.as_data()).as_data() == found.as_data()


def test_no_verb_contradicts_another_in_the_file():
    pairs, wrong = frozen.cross(everything())
    assert pairs >= 1500
    # Of bounded ranges pairs and curves are two theorems, so that curves may prove less than the pairs' composition is.
    for said in wrong:
        assert "ExponentialMechanism" in {class_of(part) for part in parts(said["setting"]["mechanism"])}, said
        assert any(verb["verb"].startswith("rdp") for verb in said["verbs"]), said
        (_, high), (least, _) = sorted(said["brackets"], key=lambda bracket: bracket[1])
        assert 0 < least - high < 1e-3 * least, said


def test_the_file_is_small_and_says_what_it_was_written_with():
    assert frozen.FILE.stat().st_size < 1.5e6
    assert {"commit", "versions", "machine", "seed"} <= set(contents())


def moved(found, lower=0.0, upper=0.0):
    """An evaluator whose ends are the frozen ones, moved by so much."""
    return lambda setting: Bounds(found.lower + lower, found.estimate, found.upper + upper, found.converged)


def one():
    """A setting with a bracket that is no point."""
    return next(
        (setting, found) for setting, found in everything() if setting.verb == "prv.epsilon" and found.gaps() > 0
    )


def test_a_comparison_finds_what_is_made_up():
    setting, found = one()
    ask = functools.partial(frozen.compare, frozen=[(setting, found)])
    assert ask(moved(found)).is_clean()
    assert ask(moved(found)).changed == 0
    width = found.upper - found.lower
    # Brackets that touch in one number agree; one ulp further they contradict each other, above and below.
    for ends in ((-width, found.lower), (found.upper, width + found.upper)):
        assert ask(lambda _, ends=ends: Bounds(ends[0], np.nan, ends[1], True)).is_clean()
    below = np.nextafter(found.lower, -np.inf), np.nextafter(found.upper, np.inf)
    for ends in ((-width, below[0]), (below[1], width + found.upper)):
        made_up = ask(lambda _, ends=ends: Bounds(ends[0], np.nan, ends[1], True))
        assert len(made_up.contradictions) == 1
        assert not made_up.is_clean()
    assert len(ask(lambda _: Bounds(np.nan, np.nan, np.inf, True)).nonsense) == 1
    assert len(ask(lambda _: Bounds(found.upper, np.nan, found.lower, True)).nonsense) == 1
    assert len(ask(lambda _: Bounds(np.zeros(2), np.zeros(2), np.full(2, np.inf), np.zeros(2, bool))).nonsense) == 1
    wide = ask(moved(found, -width, width))
    assert wide.is_clean()
    assert wide.wider[0]["ratio"] > 2
    assert wide.changed == 1
    # Of bounds from above alone the bound itself is wider.
    half = setting._replace(verb="rdp.epsilon"), frozen.Answer.of(frozen.from_above(found.upper))
    assert not frozen.compare(lambda _: frozen.from_above(found.upper), [half]).wider
    assert len(frozen.compare(lambda _: frozen.from_above(2 * found.upper), [half]).wider) == 1


def test_a_comparison_counts_errors_and_what_is_not_answered():
    def fails(setting):
        raise ValueError("nobody knows")

    assert len(frozen.compare(fails, [one()]).raised) == 1
    assert not frozen.compare(fails, [one()]).is_clean()
    nothing = frozen.compare(lambda setting: None, [one()])
    assert (nothing.asked, nothing.answered) == (1, 0)


def test_two_verbs_that_contradict_each_other_are_found():
    setting, found = one()
    above = frozen.Answer.of(Bounds(2 * found.upper, np.nan, 3 * found.upper, True))
    pairs, wrong = frozen.cross([(setting, found), (setting._replace(verb="epsilon"), above)])
    assert (pairs, len(wrong)) == (1, 1)


def check(settings, least):
    """Compares the library with frozen answers: no contradiction, and about as many narrow brackets as there were."""
    found = frozen.compare(frozen=settings)
    assert found.is_clean(), frozen.lines_of(found)
    assert found.answered >= least
    for name, widths in found.widths.items():
        for share in frozen.SHARES:
            then, now = (widths[when][f"within {share:g}"] for when in ("frozen", "new"))
            # One bracket at the border of a share may fall to the other side.
            assert now >= then - 0.02 - 1 / widths["brackets"], (name, share)


CHEAP = ("Gaussian, add_or_remove", "Gaussian, 3 in sequence")


def test_cheap_settings_are_as_they_were():
    names = ("saddlepoint.epsilon", "saddlepoint.delta")
    settings = [each for each in everything() if each[0].family in CHEAP and each[0].verb in names]
    # Every so many of them, some forty in all.
    check(settings[:: max(len(settings) // 40, 1)], 30)


LONG = ("calibrate.scale", "gdp.certified_mu", "slope.epsilon", "tradeoff.curve", "curve.epsilons", "traced.epsilon")
"""Verbs that compile for long: ``python -m bench.frozen compare`` asks all."""


@pytest.mark.exhaustive
def test_a_sample_of_all_settings_is_as_it_was():
    """Two families, and of each what a fixed seed draws: compiling all of them takes a quarter of an hour."""
    names = [name for name in sorted(contents()["families"]) if "llocation" not in name]
    chosen = np.random.default_rng(23).choice(names, 2, replace=False)
    drawn = [each for name in chosen for each in frozen.sample(contents(), 12, 0, str(name))]
    check([each for each in drawn if each[0].verb not in LONG], 12)
