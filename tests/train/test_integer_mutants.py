"""Mistakes that somebody could make in integer noise, each with a test that sees it."""

import contextlib
import importlib.util
import pathlib
import types
from dataclasses import dataclass

import jax
import pytest

from jaxacct.numerics import chacha20, programs
from jaxacct.train import integer_noise, noise

HERE = pathlib.Path(__file__).parent


def of_file(path):
    """The tests of a file, as a module of this file's own."""
    spec = importlib.util.spec_from_file_location(f"mutants_of_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NOISE, GRID = of_file(HERE / "test_integer_noise.py"), of_file(HERE / "test_integer_grid.py")
ROWS, CHACHA = of_file(HERE / "test_correlated_integers.py"), of_file(HERE.parent / "numerics" / "test_chacha20.py")


@dataclass(frozen=True)
class Mutant:
    """A text of a module that is exchanged for another, and a test that fails then; ``given``: its case."""

    name: str
    old: str
    new: str
    test: types.FunctionType
    given: tuple = ()
    module: types.ModuleType = integer_noise


ENTRIES, CUTS = NOISE.test_entries_are_those_of_the_reference, NOISE.test_draws_at_the_cuts_of_all_rows
WORDS, WINDOWS = (
    NOISE.test_all_four_words_of_a_draw_are_its_own_or_its_groups,
    (NOISE.test_windows_are_the_shards_of_a_leaf_that_counts_its_places),
)
LAW, MASSES = (
    NOISE.test_the_words_of_the_table_have_the_law_of_its_masses,
    (NOISE.test_the_masses_are_the_discrete_gaussians),
)
BILL = NOISE.test_the_bill_is_above_its_parts
CONSTANTS, PAID = GRID.test_the_constants_are_those_of_the_proof, GRID.test_no_grid_gives_less_noise_than_is_accounted
TRACED = GRID.test_traced_multipliers_without_a_grid_give_nan_and_never_a_number
ERRS = GRID.test_rounding_errs_by_half_and_neighbours_part_by_no_more_than_is_paid_for
NEIGHBOURS = ROWS.test_neighbours_noise_differs_by_no_more_than_is_accounted
STANDARD = CHACHA.test_blocks_are_those_of_the_standard

MUTANTS = [
    # The table, and a look-up in it.
    Mutant("a bit of a cut", "return np.array(words, np.uint32)",
           "words[777][3] ^= 1; return np.array(words, np.uint32)", LAW),
    Mutant("an alias", "return np.array(words, np.uint32)",
           "words[9][0] ^= 1 << 17; return np.array(words, np.uint32)", LAW),
    Mutant("a sum that is not mended", "nearest[0] += ROWS * UNIT_MASS - sum(nearest)", "pass", LAW),
    Mutant("masses of one sign", "[rho[0], *(2 * one for one in rho[1:])]", "[2 * one for one in rho]", MASSES),
    Mutant("a variance without the fine draw", "Fraction(2**40, COARSE**2 + 1)", "Fraction(2**40, COARSE**2)", MASSES),
    Mutant("b = 764", "COARSE = 765", "COARSE = 764", MASSES),
    Mutant("b = 764 in the sum alone", "2: (1, COARSE)", "2: (1, COARSE - 1)", ENTRIES, (2,)),
    Mutant("another 32", "3: (1, 32, 32 * COARSE)", "3: (1, 31, 32 * COARSE)", ENTRIES, (3,)),
    Mutant("a coarse draw without 32", "3: (1, 32, 32 * COARSE)", "3: (1, 32, COARSE)", ENTRIES, (3,)),
    Mutant("a cut that is below itself", "(shared[1] < low)", "(shared[1] <= low)", CUTS),
    Mutant("a cut of 49 bits", "(own[1] == high) & is_below)", "(own[1] == high) & False)", CUTS),
    Mutant("a cut of 81 bits", "(shared[0] == middle) & (shared[1] < low)", "(shared[0] == middle) & False", CUTS),
    Mutant("a head of 16 bits", "cut = own[0] & jnp.uint32(0x1FFFF)", "cut = own[0] & jnp.uint32(0xFFFF)", CUTS),
    Mutant("no sign", "own[0] >> 31 == 1, -size", "own[0] >> 31 == 2, -size", CUTS),
    Mutant("a row of 13 bits", "own[0] >> 17 & jnp.uint32(ROWS - 1)", "own[0] >> 17 & jnp.uint32(ROWS // 2 - 1)", CUTS),
    # Blocks, and whose they are.
    Mutant("a suffix for all draws of Z", "unit[None] * draws + which,", "unit[None] * draws + 0 * which,", WORDS,
           (3,)),
    Mutant("a suffix for a unit", "jnp.stack(suffix[0::2])[None]", "jnp.stack(suffix[0::2])[None, :1]", WORDS, (3,)),
    Mutant("one suffix in both words", "jnp.stack(suffix[1::2])[None]", "jnp.stack(suffix[0::2])[None]", WORDS, (3,)),
    Mutant("suffixes from the draws' own blocks", "(SUFFIX, leaf, 0)", "(NOISE, leaf, 0)", WORDS, (3,)),
    Mutant("suffixes that know no leaf", "(SUFFIX, leaf, 0)", "(SUFFIX, 0, 0)", WORDS, (3,)),
    Mutant("suffixes that know no unit", "unit[None] * draws + which,", "0 * unit[None] * draws + which,", WORDS, (3,)),
    Mutant("a counter that knows no unit", "(unit[None, None] * GROUPS + groups)", "(0 * unit[None, None] + groups)",
           ENTRIES, (2,)),
    Mutant("a counter that knows no draw", "GROUPS + groups) * draws + which[None]",
           "GROUPS + groups) * draws + 0 * which[None]", ENTRIES, (2,)),
    Mutant("counters that meet", "GROUPS + groups) * draws + which[None]", "GROUPS + groups) + which[None]", ENTRIES,
           (2,)),
    Mutant("a nonce that knows no leaf", "(NOISE, leaf, 0)", "(NOISE, 0, 0)", ENTRIES, (2,)),
    Mutant("a leaf's number among those that are not empty", "jnp.full(unit.shape, i, jnp.uint32) for i,",
           "jnp.full(unit.shape, numbers.index(i), jnp.uint32) for i,", ENTRIES, (2,)),
    Mutant("another order of entries", "jnp.transpose(values, (2, 1, 0))", "jnp.transpose(values, (2, 0, 1))",
           ENTRIES, (2,)),
    # Leaves on a mesh.
    Mutant("no place on the mesh", "jax.lax.axis_index(e) * side", "0 * jax.lax.axis_index(e) * side", WINDOWS),
    Mutant("strides of the window", "stride * self.shape[axis]", "stride * self.drawn[axis]", WINDOWS),
    Mutant("runs that begin with a unit", "0 if is_aligned else UNIT_ENTRIES - 1", "0", WINDOWS),
    Mutant("runs that do not slide", "(start % UNIT_ENTRIES,)", "(0 * start,)", WINDOWS),
    Mutant("a window that is not cut", "jnp.uint32(0) if part == drawn else start", "jnp.uint32(0)", WINDOWS),
    # The grid.
    Mutant("a grid without roundings", "- (math.sqrt(entries) * ROUNDING_OF_ENTRY + as_float64(rounding))", "- 0", PAID,
           (670_000, 3)),
    Mutant("roundings of entries that add up in L1", "(math.sqrt(entries) * ROUNDING_OF_ENTRY + as",
           "(ROUNDING_OF_ENTRY + as", PAID, (670_000, 3)),
    Mutant("a grid without roundings of rows", "ROUNDING_OF_ENTRY + as_float64(rounding))", "ROUNDING_OF_ENTRY)", PAID,
           (1, 2)),
    Mutant("a grid that is rounded down", "norm / room * (1 + 2.0**-40)", "norm / room * (1 - 2.0**-46)", PAID, (1, 2)),
    Mutant("a grid for s", "VARIANCES[draws] - Fraction(DITHER)", "VARIANCES[draws]", PAID, (1, 2)),
    Mutant("no dither", "DITHER = 49 / 16", "DITHER = 0.0", CONSTANTS),
    Mutant("a scaling without error", "ROUNDING_OF_ENTRY = 1 + 2 * MOST_MULTIPLE * SCALING_ERROR",
           "ROUNDING_OF_ENTRY = 1.0", CONSTANTS),
    Mutant("the variance of two draws for three", "3: DRAW_VARIANCE + 32**2 * Fraction(2**40)",
           "3: DRAW_VARIANCE + 33**2 * Fraction(2**40)", CONSTANTS),
    Mutant("a grid for any traced multiplier", "jnp.where(is_sound, norm / room * (1 + 2.0**-40), jnp.nan)",
           "norm / room * (1 + 2.0**-40)", TRACED),
    Mutant("a grid below the clip", "& (room < MOST_MULTIPLE)", "", TRACED),
    Mutant("a norm of 0", "(norm > 2.0**-900)", "(norm >= 0)", TRACED),
    Mutant("a NaN that is cast before it is looked at", "(on_grid(leaf, grid) + z) * grid",
           "(on_grid(leaf, grid).astype(jnp.int64) + z) * jnp.nan_to_num(grid)", TRACED),
    Mutant("sums that are not clipped", "jnp.rint(jnp.clip(leaf / grid, -MOST_MULTIPLE, MOST_MULTIPLE))",
           "jnp.rint(leaf / grid)", ERRS, (GRID.on_traced,)),
    Mutant("sums that are not rounded", "jnp.rint(jnp.clip(leaf / grid, -MOST_MULTIPLE, MOST_MULTIPLE))",
           "jnp.clip(leaf / grid, -MOST_MULTIPLE, MOST_MULTIPLE)", ERRS, (GRID.on_traced,)),
    Mutant("sums that are scaled in float32", "jnp.rint(jnp.clip(leaf / grid,",
           "jnp.rint(jnp.clip((leaf.astype(jnp.float32) / grid.astype(jnp.float32)).astype(leaf.dtype),", ERRS,
           (GRID.on_traced,)),
    Mutant("sums that are rounded down", "jnp.rint(jnp.clip(", "jnp.floor(jnp.clip(", ERRS, (GRID.on_traced,)),
    Mutant("sums of float32", "if any(leaf.dtype != jnp.float64 for leaf in leaves):", "if False:",
           NOISE.test_float32_sums_are_refused),
    Mutant("small multipliers", "if not sigma > 2 * deviation_below(draws) / MOST_MULTIPLE:", "if False:",
           GRID.test_concrete_multipliers_without_a_grid_are_refused_with_their_name, (1e-20, "so small")),
    # Correlated noise.
    Mutant("rows that are not scaled by their own entry", "jnp.rint(own * row)", "jnp.rint(row)", NEIGHBOURS,
           ("banded", 1.0)),
    Mutant("a grid that knows no own entry", "entries, draws, rounding) / own".replace("entries", "0"),
           "0, draws, rounding)", NEIGHBOURS, ("banded", 1.0)),
    Mutant("buffers of rows that are not divided", "lambda row: row / own, rows", "lambda row: row, rows", NEIGHBOURS,
           ("banded", 1.0)),
    Mutant("rows that are not whole", "z + jnp.rint(own * row)", "z + own * row", NEIGHBOURS, ("banded", 1.0)),
    Mutant("roundings of rows left out", "rounded / least + rounded * math.sqrt(steps) / sensitivity",
           "rounded / least", ROWS.test_what_roundings_add_is_that_of_the_proof),
    Mutant("roundings of sums left out", "rounded / least + rounded * math.sqrt(steps) / sensitivity",
           "rounded * math.sqrt(steps) / sensitivity", ROWS.test_what_roundings_add_is_that_of_the_proof),
    Mutant("the first own entry for all", "least = float(jnp.min(own))", "least = float(jnp.max(own))",
           ROWS.test_what_roundings_add_is_that_of_the_proof),
    # The bill.
    Mutant("a bill without the tail", "3 * samples * (tail + 2.0**-113)", "3 * samples * 2.0**-113", BILL),
    Mutant("a bill of one draw", "3 * samples * 3.5 * 2.0**-98", "samples * 3.5 * 2.0**-98", BILL),
    Mutant("a bill of one sum", "for tau in (inner, outer)", "for tau in (outer,)", BILL),
    # The generator.
    Mutant("nine rounds", "fori_loop(0, 10,", "fori_loop(0, 9,", STANDARD, (), chacha20),
    Mutant("a rotation", "(a, b, d, 16)", "(a, b, d, 15)", STANDARD, (), chacha20),
    Mutant("no sum with the start", "[a + b for a, b in zip(", "[a for a, b in zip(", STANDARD, (), chacha20),
    Mutant("a constant", "0x61707865", "0x61707864", STANDARD, (), chacha20),
    Mutant("one purpose for two", "NOISE, SUFFIX, NORMAL, FOLD, SPLIT, BITS = range(6)",
           "NOISE, SUFFIX, NORMAL, FOLD, SPLIT, BITS = 0, 1, 1, 3, 4, 5",
           CHACHA.test_purposes_are_distinct_and_so_are_the_keys_of_a_run, (), chacha20),
]  # fmt: skip


@contextlib.contextmanager
def in_place_of(module, source):
    """Runs a module anew from another source; what others imported of it is exchanged, and programs are made anew."""
    names, before = vars(module), dict(vars(module))
    if module is chacha20:  # of a name there is one generator: the old one calls the new functions
        source = source[: source.index("CHACHA20: Any")]
    try:
        with pytest.MonkeyPatch.context() as patch:
            exec(compile(source, module.__file__, "exec"), names)
            exchanged = {id(old): names[name] for name, old in before.items() if old is not names[name]}
            for other in (integer_noise, noise, NOISE, GRID, ROWS, CHACHA):
                for name, old in list(vars(other).items()):
                    if other is not module and id(old) in exchanged and callable(old):
                        patch.setattr(other, name, exchanged[id(old)])
            forget()
            yield
    finally:
        names.clear()
        names.update(before)
        forget()


def forget():
    jax.clear_caches()
    programs.forget()
    for module in (NOISE, GRID, ROWS):
        for cached in vars(module).values():
            if hasattr(cached, "cache_clear") and cached is not NOISE.weights:
                cached.cache_clear()


def passes(mutant, source):
    """Asks a mutant's test of a source; raises where the source is none that runs."""
    with in_place_of(mutant.module, source), pytest.MonkeyPatch.context() as patch:
        wanted = {"monkeypatch": patch} if "monkeypatch" in mutant.test.__code__.co_varnames else {}
        try:
            mutant.test(*mutant.given, **wanted)
        except (NameError, AttributeError, SyntaxError):
            raise
        except (Exception, pytest.fail.Exception):
            return False
    return True


def name_test(mutant):
    """The test and what it is given, without a place in memory: all workers find the same names."""
    return f"{mutant.test.__name__} {[getattr(part, '__name__', part) for part in mutant.given]}"


@pytest.mark.exhaustive
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mistake_is_seen(mutant):
    source = pathlib.Path(mutant.module.__file__).read_text()
    assert source.count(mutant.old) == 1, mutant.old
    assert not passes(mutant, source.replace(mutant.old, mutant.new))


@pytest.mark.exhaustive
@pytest.mark.parametrize("of", {(one.test, one.given): one for one in MUTANTS}.values(), ids=name_test)
def test_without_a_mistake_none_is_seen(of):
    """What runs anew is then all that was changed: it is the exchanged text that is seen."""
    assert passes(of, pathlib.Path(of.module.__file__).read_text())
