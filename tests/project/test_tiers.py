"""The two tiers of the suite: which cases are of the first, and that its budget is compared with what it spends."""

import pathlib
import types

import pytest

TESTS = pathlib.Path(__file__).parents[1]


@pytest.fixture
def settings(request):
    """The suite's own settings, as pytest has loaded them."""
    return request.config.pluginmanager.get_plugin(str(TESTS / "conftest.py"))


class Item:
    """As much of a test as is asked for its tier."""

    def __init__(self, case, chosen):
        self.nodeid, self.marks = f"test_a[{case}]", []
        self.callspec = types.SimpleNamespace(id=case)
        self.chosen = chosen and pytest.mark.first_tier(*chosen).mark

    def get_closest_marker(self, name):
        return self.chosen if name == "first_tier" else None

    def add_marker(self, name):
        self.marks.append(name)


def marked(settings, cases, chosen, args=()):
    items = [Item(case, chosen) for case in cases]
    settings._mark_other_cases(types.SimpleNamespace(args=args), items)
    return [item.callspec.id for item in items if item.marks == ["exhaustive"]]


def test_cases_that_are_not_named_are_exhaustive(settings):
    assert marked(settings, ["a", "b", "c"], ["b"]) == ["a", "c"]
    assert marked(settings, ["a", "b"], None) == []


def test_a_case_that_there_is_not_is_an_error_but_where_single_ones_are_collected(settings):
    with pytest.raises(pytest.UsageError, match="test_a"):
        marked(settings, ["a", "b"], ["a", "c"])
    assert marked(settings, ["b"], ["a"], args=["tests/test_x.py::test_a[b]"]) == ["b"]


@pytest.mark.parametrize("kind", ["programs", "processes"])
def test_a_first_tier_that_costs_more_than_its_budget_fails(settings, kind, monkeypatch):
    monkeypatch.setattr(settings, "_is_whole_first_tier", lambda config: True)
    config = types.SimpleNamespace(getoption=lambda name, default=None: 2)
    for more, status in ((0, pytest.ExitCode.OK), (1, pytest.ExitCode.TESTS_FAILED)):
        session = types.SimpleNamespace(config=config, exitstatus=pytest.ExitCode.OK)
        budget = settings.Budget()
        # What two workers hand over as they end is added up.
        for spent in (settings.BUDGET[kind] - 1, 1 + more):
            budget.pytest_testnodedown(types.SimpleNamespace(workeroutput={"spent": {kind: spent}}), None)
        budget.pytest_sessionfinish(session)
        assert session.exitstatus == status
        assert len(budget.over) == more
        assert all(kind in line for line in budget.over)
