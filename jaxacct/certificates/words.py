"""The words of a certificate: what it states, what it assumes, and what would void it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from jaxacct.mechanisms import AboveThreshold, GaussianAboveThreshold, RepeatAndSelect
from jaxacct.outward import rounded_up
from jaxacct.specs import Spec
from jaxacct.specs.parts import all_of, sampling_of
from jaxacct.specs.spec import ANY, unit_of

NEIGHBOURS = {
    "add_or_remove": "the data with and without {unit}",
    "remove": "the data with and without {unit}, told apart one way: that it was there",
    "add": "the data with and without {unit}, told apart one way: that it was not there",
    "replace": "the data with {unit} and with another in its place",
    "zero_out": "the data with {unit} and with one that contributes nothing in its place",
}

SAMPLES = {
    "poisson": (
        "Each batch is a Poisson sample: every record is in it with the stated probability, independently.",
        "Batches were shuffled, of a fixed size or taken in order, or who was in them was seen.",
    ),
    "without_replacement": (
        "Each batch is a sample of a fixed size, drawn uniformly without replacement and anew for every step.",
        "Batches were taken in order or from one shuffling of the data, or who was in them was seen.",
    ),
    "with_replacement": (
        "Each batch is a fixed number of records, drawn independently and uniformly with replacement.",
        "Batches were drawn otherwise, or who was in them was seen.",
    ),
    "random_allocation": (
        "In every epoch each record is put into the stated number of its batches at random, independently.",
        "Batches were shuffled to equal sizes or taken in order, or who was in them was seen.",
    ),
}


SEARCH = (
    "How many runs a search made was drawn from the stated law, whatever data and results were; the best alone was "
    "released, and not how many there were.",
    "nobody",
    "Other runs or their number were shown, or the best was chosen by looking at the data again.",
)

ABOVE = (
    "Of queries against a threshold only which was the first above was released; none moves by more than the stated "
    "sensitivity{monotone}, and noise is drawn for the threshold once a run, and for each query.",
    "nobody but the program that ran",
    "The value of a query or of the noisy threshold was shown, or a run went on behind its first answer above.",
)


def assumptions(spec: Spec) -> list[dict[str, str]]:
    """Returns what the statement rests on, one by one: in words, who says so, and what would void it."""
    given = spec.given
    unit = unit_of(given)
    fixed, has_report = given.get("fixed", ""), any("report" in part for part in given["parts"])
    found = [
        (
            f"What is protected is {unit}: " + NEIGHBOURS[spec.relation].format(unit=unit)
            + (f"; up to {spec.group} records change together." if spec.group > 1 else "."),
            "the spec" if "unit" in given or spec.group > 1
            else "nobody: a record is taken for the unit" if unit == ANY else "the trainer's report",
            f"What is protected contributed more than {spec.group} record{'s' * (spec.group > 1)}.",
        ),
        (
            "Noise, sampling and the number of releases were fixed before the first release, or without regard to the "
            "data.",
            f"the spec: {fixed}" if fixed else "the trainer's report, of its runs" if has_report else "nobody",
            "Settings, or when to stop, followed from results or from the data.",
        ),
        (
            "Each release is the mechanism that is listed: contributions are bounded record by record, and noise of "
            "the stated scale, relative to that bound, is drawn afresh.",
            "nobody but the program that ran",
            "Contributions were bounded for several records at once or not at all, noise was left out or used twice, "
            "or its seed is known.",
        ),
    ]  # fmt: skip
    for release in spec.releases:
        for mechanism in all_of(release.mechanism):
            if (sampling := sampling_of(mechanism)) in SAMPLES:
                text, void = SAMPLES[sampling]
                found.append((text, release.said_by, void))
            if isinstance(mechanism, RepeatAndSelect):
                found.append(SEARCH)
            if isinstance(mechanism, (AboveThreshold, GaussianAboveThreshold)):
                text, said_by, void = ABOVE
                rising = " and none falls where a record is added" if mechanism.monotone else ""
                found.append((text.format(monotone=rising), said_by, void))
    for config in (part["report"]["config"] for part in given["parts"] if "report" in part):
        sampler, noise = config["sampler"], config.get("noise", "independent")
        if noise != "independent" or sampler == "CyclicPoissonSampler":
            found.append((
                f"Batches came by {sampler}, with noise that is {noise}: one release that is listed stands "
                "for many steps, and its rate is that within a turn.",
                "the trainer's report", "Records came to steps otherwise, or a step's noise was drawn again.",
            ))  # fmt: skip
        if config.get("seed") == "given by the user":
            found.append(("The random seed is secret.", "the trainer's report", "It is known, or was used again."))
    if spec.cut_probability:
        found.append((
            "Batches were cut, or drawn from another law, with a probability of at most "
            f"{rounded_up(spec.cut_probability, '.3g')} over all steps, which delta pays for.",
            "the trainer's report", "Another program drew the batches, or had less room for them.",
        ))  # fmt: skip
    found += [
        (
            "Nothing else was released of the same data.",
            "nobody",
            "Other runs, a choice of settings on these data, statistics, or intermediate values were shown to anyone.",
        ),
        (
            "Noise is the real-valued noise of the theorem, or one whose distance from it is paid for elsewhere.",
            "nobody: noise is drawn in floating point",
            "The last bits of what was released are used to tell noise apart.",
        ),
    ]
    return [dict(zip(("text", "said_by", "void_if"), one, strict=True)) for one in dict.fromkeys(found)]


def statement(made: dict[str, Any]) -> str:
    """Returns what is certified, for readers who know no formula; numbers are rounded up."""
    claim, risks, status = made["claim"], made["risks"], made["verdict"]["status"]
    success = dict(zip(risks["false_positive_rate"], risks["true_positive_rate"], strict=True))
    changed = made["unit"] if made["group"] == 1 else f"{made['unit']} (up to {made['group']} records)"
    proof = {
        "PROVED": "An independent program has proved the bracket that this rests on, in exact arithmetic.",
        "UNDECIDED": "The independent program has not decided on the bracket that this rests on; its reason is below.",
    }[status]
    neighbours = NEIGHBOURS[made["relation"]].format(unit=changed)
    return (
        f"The results listed here are differentially private with epsilon = {rounded_up(claim['epsilon'])} and delta = "
        f"{rounded_up(claim['delta'])}, if the assumptions below hold. Compared are {neighbours}. Whoever sees all the "
        "results, knows everything about everybody else and has unlimited means can tell the two apart only so well: "
        f"accusing wrongly in 1 of 100 cases, they are right in at most {_percent(success[0.01])} of 100; accusing "
        f"wrongly in 5 of 100 cases, in at most {_percent(success[0.05])} of 100. By guessing they would be right in 1 "
        f"and in 5. {proof} This is a statement about the method that ran, not about what the results say; and it does "
        "not say that a person cannot be harmed by what is true of many."
    )


def _percent(rate: float) -> str:
    return rounded_up(100 * Decimal(rate), ".1f").removesuffix(".0")
