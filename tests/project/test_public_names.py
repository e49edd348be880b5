"""Every public name is documented, shown at work, and on a page; every privacy number says what it guarantees."""

import ast
import dataclasses
import enum
import importlib
import inspect
import pathlib
import re

import pytest
from helpers.public_names import NAMES, PACKAGES

ROOT = pathlib.Path(__file__).parents[2]

NUMBERS = ("prv", "saddlepoint", "rdp", "gdp", "tradeoff", "convert", "iteration", "calibrate", "filters", "odometers")
"""The packages whose functions return privacy numbers, or change one into another."""

WITHOUT_DOCTEST = {
    "jaxacct.audit.run": "trains several models: minutes",
    "jaxacct.audit.Audit": "what run returns",
    "jaxacct.train.build_report": "needs a trainer that has run: seconds; tests/train/test_report.py has one",
    "jaxacct.train.guarantee": "likewise",
    "jaxacct.train.clipping.ClippingRule": "the base class; Flat shows a rule",
    "jaxacct.train.clipping.Route": "a row of Routes",
    "jaxacct.train.clipping.Routes": "what routes returns",
    "jaxacct.selection.Trials": "the base class; Poisson shows a law",
    "jaxacct.train.TrainState": "what a trainer holds",
    "jaxacct.train.Tuned": "what tune returns",
    "jaxacct.train.tune": "trains several models: seconds; tests/train/test_tuning.py has searches",
    "jaxacct.train.PrivateState": "what PrivateGradients.start returns",
    "jaxacct.DominatingPair": "the base class; FinitePair shows a pair",
    "jaxacct.strategies.Strategy": "the base class; BandedToeplitz shows a strategy",
    "jaxacct.strategies.BufferedStrategy": "likewise",
    "jaxacct.strategies.Streamed": "of another library's; tests/strategies/test_streams.py has one",
    "jaxacct.gdp.GaussianSummary": "what certified_mu returns",
    "jaxacct.prv.Curve": "what curve returns",
    "jaxacct.release.Account": "what Budget.read returns",
    "jaxacct.release.Statistic": "what a release returns",
    "jaxacct.prv.Diagnostics": "what epsilon and delta return beside the bounds, if asked",
}

WITH_ANY = {
    "jaxacct.calibrate.scale(make)": "any mechanism of one number, of whatever type the caller's number has",
    "jaxacct.calibrate.scale(steps)": "likewise",
    "jaxacct.certificates.Checked(certificate)": "JSON",
    "jaxacct.certificates.certify(source)": "JSON",
    "jaxacct.certificates.certify(return)": "JSON",
    "jaxacct.certificates.write(made)": "JSON",
    "jaxacct.LossDistributionPair(parameters)": "the callables' own",
    "jaxacct.menus.Menu.as_dict(return)": "JSON",
    "jaxacct.plot.training(report)": "JSON",
    "jaxacct.prv.delta(return)": "the bracket, and a record beside it if asked",
    "jaxacct.prv.epsilon(return)": "likewise",
    "jaxacct.specs.Spec(source)": "JSON",
    "jaxacct.specs.Spec.steps(return)": "numbers of runs, or arrays of them",
    "jaxacct.specs.combined(return)": "JSON",
    "jaxacct.specs.combined(settings)": "JSON",
    "jaxacct.specs.combined(specs)": "JSON",
    "jaxacct.specs.parsed(source)": "JSON",
    "jaxacct.specs.part_of(return)": "JSON",
    "jaxacct.specs.read(return)": "JSON",
    "jaxacct.sweep.Sweep.as_dict(return)": "JSON",
    "jaxacct.sweep.Sweep.to_pandas(return)": "of a library that need not be there",
    "jaxacct.sweep.Sweep.to_xarray(options)": "xarray's own",
    "jaxacct.sweep.Sweep.to_xarray(return)": "of a library that need not be there",
    "jaxacct.sweep.delta(options)": "those of the accountant that is asked",
    "jaxacct.sweep.epsilon(options)": "likewise",
    "jaxacct.sweep.grid(axes)": "numbers, arrays, and static settings of a mechanism",
    "jaxacct.sweep.noise_multiplier(options)": "those of the accountant that is asked",
    "jaxacct.sweep.rows(columns)": "as of an axis",
    "jaxacct.train.DPTrainer(data)": "arrays, or rows of what the caller's loss takes",
    "jaxacct.train.DPTrainer.foreseen(return)": "whichever mechanism the sampler makes",
    "jaxacct.train.DPTrainer.mechanism(return)": "likewise",
    "jaxacct.train.IndexedSource(data)": "whatever can be indexed",
    "jaxacct.train.IndexedSource.fetch(indices)": "as its data takes them",
    "jaxacct.train.PerLayer.of(clip_norms)": "a tree of names and numbers",
    "jaxacct.train.TrainState(ledger)": "a pytree of the trainer's",
    "jaxacct.train.TrainState(policy)": "likewise",
    "jaxacct.train.Tuned(certificate)": "JSON",
    "jaxacct.train.build_report(config)": "JSON",
    "jaxacct.train.build_report(return)": "JSON",
    "jaxacct.train.cross_entropy(model)": "any callable module",
    "jaxacct_recipes.make_trainer(options)": "those of DPTrainer",
    "jaxacct.train.split_params(return)": "a graph definition of flax, whose type is not public",
    "jaxacct.train.write_report(report)": "JSON",
}
"""What a public signature leaves open, with the reason; a pytree of the user's own is ``jaxtyping.PyTree``."""

WITHOUT_GUARANTEE: dict[str, str] = {}


CLASSES = {name: entry for name, entry in NAMES.items() if inspect.isclass(entry)}
FUNCTIONS = {name: entry for name, entry in NAMES.items() if inspect.isfunction(entry)}
PROTOCOLS = [entry for entry in CLASSES.values() if getattr(entry, "_is_protocol", False)]


def signatures():
    """Yields the name and the annotations of every public function, method and property, and of what makes a class."""
    for name, entry in FUNCTIONS.items():
        yield name, inspect.unwrap(entry).__annotations__
    for name, entry in CLASSES.items():
        if "__init__" in vars(entry):
            yield name, entry.__init__.__annotations__
        for member, value in members(entry):
            function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            yield f"{name}.{member}", inspect.unwrap(function).__annotations__


def own_docstring(entry):
    """The docstring of a class or function itself; what ``dataclass`` and ``NamedTuple`` write is none."""
    text = vars(entry).get("__doc__") if inspect.isclass(entry) else entry.__doc__
    return "" if text is None or text.startswith(f"{entry.__name__}(") else inspect.cleandoc(text)


def members(entry):
    """Yields the public methods and properties that the library itself gives a class."""
    for name in dir(entry):
        if name.startswith("_"):
            continue
        for base in entry.__mro__:
            if name in vars(base):
                value = vars(base)[name]
                kinds = (property, classmethod, staticmethod)
                if base.__module__.startswith("jaxacct") and (inspect.isfunction(value) or isinstance(value, kinds)):
                    yield name, value
                break


def implements(entry, protocol):
    """Whether a class has all that a protocol asks for."""
    fields = {field.name for field in dataclasses.fields(entry)} if dataclasses.is_dataclass(entry) else set()
    asked = {name for name in {*vars(protocol), *protocol.__annotations__} if not name.startswith("_")}
    return all(hasattr(entry, name) or name in fields for name in asked)


def text_after_assignment(module, name):
    """The string below the assignment of ``name``, looked for where the name comes from; None without one."""
    tree = ast.parse(pathlib.Path(importlib.import_module(module).__file__).read_text())
    body = [inner for node in tree.body for inner in (node.body if isinstance(node, ast.If) else [node])]
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            return text_after_assignment(node.module, name)
        is_star = isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
        if is_star and (text := text_after_assignment(node.module, name)):
            return text
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            return following.value.value if text else None
    return None


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_what_it_is_for_and_what_is_public(package):
    module = importlib.import_module(package)
    assert module.__doc__
    assert len(set(module.__all__)) == len(module.__all__) > 0


def test_every_name_has_a_docstring():
    silent = [name for name, entry in (CLASSES | FUNCTIONS).items() if not own_docstring(entry)]
    assert not silent


def test_every_constant_and_type_alias_is_explained():
    rest = [name for name in NAMES if name not in CLASSES and name not in FUNCTIONS]
    assert len(rest) > 5
    silent = [name for name in rest if not text_after_assignment(*name.rsplit(".", 1))]
    assert not silent


def test_every_method_and_property_has_a_docstring_of_its_own_or_of_what_it_implements():
    silent = []
    for full, entry in CLASSES.items():
        sources = [entry, *(protocol for protocol in PROTOCOLS if implements(entry, protocol))]
        for name, value in members(entry):
            inherited = [inspect.getdoc(getattr(source, name, None)) for source in sources if hasattr(source, name)]
            listed = [re.search(rf"^\s+{name}\b.*:", inspect.getdoc(source) or "", re.M) for source in sources]
            if not inspect.getdoc(value) and not any(inherited) and not any(listed):
                silent.append(f"{full}.{name}")
    assert not silent


def test_a_public_signature_says_any_only_with_a_reason():
    found = {
        f"{name}({argument})"
        for name, annotations in signatures()
        for argument, annotation in annotations.items()
        if re.search(r"\bAny\b", str(annotation))
    }
    assert found == set(WITH_ANY), "without a reason, or no longer an exception"


def test_every_field_and_member_is_explained_in_the_docstring_of_its_class():
    silent = []
    for full, entry in CLASSES.items():
        if dataclasses.is_dataclass(entry):
            fields = list(inspect.signature(entry).parameters)
        elif issubclass(entry, enum.Enum):
            fields = list(entry.__members__)
        else:
            fields = getattr(entry, "_fields", ())
        text = own_docstring(entry)
        silent += [f"{full}.{name}" for name in fields if name[0] != "_" and not re.search(rf"\b{name}\b", text)]
    assert not silent


def test_every_function_and_every_class_that_users_make_is_shown_at_work():
    needs_none = (enum.Enum, Exception)
    silent = {
        name
        for name, entry in (CLASSES | FUNCTIONS).items()
        if ">>>" not in own_docstring(entry)
        and not (inspect.isclass(entry) and (issubclass(entry, needs_none) or entry in PROTOCOLS))
        and not hasattr(entry, "_fields")  # a record
    }
    assert silent == set(WITHOUT_DOCTEST), "missing, or no longer an exception"


def refers_to_a_guarantee(text, module):
    """Whether a sentence on the guarantee names a public function or class that states one."""
    for sentence in re.split(r"(?<=[.;])\s", " ".join(text.split())):
        if "uarantee" in sentence or "estimate" in sentence:
            for name in re.findall(r":(?:func|class):`[~.]?([\w.]+)`", sentence):
                found = NAMES.get(name) or getattr(module, name, None) or NAMES.get(f"jaxacct.convert.{name}")
                if found is not None and "Formal guarantee" in own_docstring(found):
                    return True
    return False


@pytest.mark.parametrize("room", NUMBERS)
def test_every_privacy_number_says_what_it_guarantees(room):
    entries = {name: entry for name, entry in FUNCTIONS.items() if name.startswith(f"jaxacct.{room}.")}
    if room in ("filters", "odometers"):
        entries |= {name: entry for name, entry in CLASSES.items() if name.startswith(f"jaxacct.{room}.")}
    assert entries
    silent = {
        name
        for name, entry in entries.items()
        if "Formal guarantee" not in own_docstring(entry)
        and not refers_to_a_guarantee(own_docstring(entry), inspect.getmodule(inspect.unwrap(entry)))
    }
    assert silent == {name for name in WITHOUT_GUARANTEE if name.startswith(f"jaxacct.{room}.")}


def test_every_package_has_a_page_and_every_page_is_in_the_navigation():
    pages = {path.name: path.read_text() for path in (ROOT / "docs" / "api").glob("*.md")}
    shown = {name for text in pages.values() for name in re.findall(r"^::: ([\w.]+)", text, re.M)}
    assert set(PACKAGES) <= shown
    navigation = (ROOT / "mkdocs.yml").read_text()
    linked = set(re.findall(r"\b([\w/-]+\.md)$", navigation.split("nav:")[1], re.M))
    assert linked == {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}


def test_every_room_with_public_names_is_an_attribute_of_the_package():
    """Asked of the list, as an import of anything else may have made the attribute (test_light_base.py asks afresh)."""
    rooms = {name.split(".")[1] for name in PACKAGES if name.startswith("jaxacct.")}
    assert {"mechanisms", "specs", "train"} <= rooms
    assert rooms <= set(importlib.import_module("jaxacct").__all__)
