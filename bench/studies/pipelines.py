"""Shuffled batches as pipelines run them: ``python -m bench.studies.pipelines``.

The table of docs/pipelines.md: what was claimed of ten pipelines as Poisson samples, the bracket of what ran, the
verdict, and the processor time that it takes once its programs are there. With ``--loaders`` the orders of the loaders
that are installed (PyTorch, Accelerate, Hugging Face's datasets, Keras, Grain): whether an epoch repeats the one
before, whether another run or process repeats it, whether examples come twice, and where the last one may come.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

PIPELINES = {
    # name: noise, examples, batch size, epochs, delta
    "MNIST, Opacus's example": (1.0, 60_000, 64, 10, 1e-5),
    "CIFAR-10, Opacus's example": (1.5, 50_000, 512, 90, 1e-5),
    "MNIST, TensorFlow Privacy's": (1.3, 60_000, 250, 15, 1e-5),
    "CIFAR-10, a wide network": (3.0, 50_000, 4096, 80, 1e-5),
    "fine-tuning on 100,000": (0.8, 100_000, 1000, 3, 1e-6),
    "fine-tuning on 500,000, one pass": (0.6, 500_000, 500, 1, 1e-6),
    "advertisements, one pass": (0.5, 36_000_000, 1000, 1, 1e-7),
    "large batches": (2.0, 20_000, 1000, 5, 1e-5),
    "one pass, much noise": (2.0, 1_000_000, 1000, 1, 1e-6),
    "much noise": (4.0, 100_000, 1000, 20, 1e-5),
}


def claims() -> None:
    """Prints a row for each pipeline."""
    import jaxacct as ja
    from jaxacct import verify
    from jaxacct.adapters import ShuffledBatches
    from jaxacct.display import rounded_down, rounded_up

    print("| pipeline | noise, batches, epochs, delta | Poisson's | bracket | verdict | one order | known |")
    print("|---|---|---|---|---|---|---|")
    for name, (noise, examples, size, epochs, delta) in PIPELINES.items():
        loader = ShuffledBatches(examples, size)
        steps = loader.steps_per_epoch * epochs
        poisson = ja.PoissonSubsampledGaussian(noise, 1 / loader.steps_per_epoch)
        claimed = float(ja.epsilon(poisson, steps, delta).upper)
        for _ in range(2):  # the second time without a compiler
            start = time.process_time()
            verdict = loader.judge(noise, steps, claimed, delta)
            seconds = time.process_time() - start
        low, high = verdict.truth
        one = replace(loader, reshuffles=False).judge(noise, steps, claimed, delta).truth[0]
        known = replace(loader, seed=0).judge(noise, steps, claimed, delta).truth[1]
        alone = verify.epsilon(*loader.compose(noise, steps), delta, (None, claimed), relation="zero_out").status
        print(
            f"| {name} | {noise}, {loader.steps_per_epoch:,}, {epochs}, {delta:g} | {claimed:.3f} "
            f"| [{rounded_down(low, '.4g')}, {rounded_up(high, '.4g')}] | {verdict.status} "
            f"| {rounded_down(one, '.5g')} | {rounded_up(known, '.5g')} |",
            f"{seconds:.2f} CPU seconds, referee: {alone}",
        )


Orders = Callable[[], list[list[int]]]
N = 12


def of_torch() -> Iterator[tuple[str, Orders]]:
    """Yields PyTorch's ways, each as a function that gives the orders of two epochs."""
    import torch
    from torch.utils.data import DataLoader, DistributedSampler

    def epochs(loader: object) -> list[list[int]]:
        return [[int(i) for batch in loader for i in batch] for _ in range(2)]  # type: ignore[attr-defined]

    def distributed(set_epoch: bool) -> list[list[int]]:
        samplers = [DistributedSampler(range(N), num_replicas=5, rank=i) for i in range(5)]
        found = []
        for epoch in range(2):
            for sampler in samplers if set_epoch else ():
                sampler.set_epoch(epoch)
            found.append([i for step in zip(*samplers, strict=True) for i in step])
        return found

    def after_seed() -> list[list[int]]:
        torch.manual_seed(42)
        return epochs(DataLoader(range(N), batch_size=4, shuffle=True))

    def generator(seed: int) -> list[list[int]]:
        return epochs(DataLoader(range(N), 4, shuffle=True, generator=torch.Generator().manual_seed(seed)))

    yield "torch DataLoader(shuffle=True)", lambda: epochs(DataLoader(range(N), batch_size=4, shuffle=True))
    yield "the same after manual_seed(42)", after_seed
    yield "the same, generator of seed 7", lambda: generator(7)
    yield "the same, generator of seed 7 + 2^32", lambda: generator(7 + 2**32)
    yield "DistributedSampler, without set_epoch", lambda: distributed(False)
    yield "DistributedSampler, with set_epoch", lambda: distributed(True)


def of_accelerate() -> Iterator[tuple[str, Orders]]:
    """Yields Accelerate's split of even batches over two processes."""
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler, SequentialSampler

    def even() -> list[list[int]]:
        batches = BatchSampler(SequentialSampler(range(N - 2)), 4, drop_last=False)
        shards = [list(BatchSamplerShard(batches, 2, rank)) for rank in range(2)]
        return [[i for step in zip(*shards, strict=True) for batch in step for i in batch]] * 2

    yield "Accelerate, even batches, of 10 examples", even


def of_datasets() -> Iterator[tuple[str, Orders]]:
    """Yields Hugging Face's ways."""
    import datasets

    data = datasets.Dataset.from_dict({"x": list(range(N))})

    def twice(dataset: object) -> list[list[int]]:
        return [[row["x"] for row in dataset] for _ in range(2)]  # type: ignore[attr-defined]

    yield "datasets Dataset.shuffle()", lambda: twice(data.shuffle())
    yield "IterableDataset.shuffle(buffer_size=4)", lambda: twice(data.to_iterable_dataset().shuffle(buffer_size=4))


def of_keras() -> Iterator[tuple[str, Orders]]:
    """Yields the order of Keras's fit on arrays."""
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    def fit() -> list[list[int]]:
        adapter = ArrayDataAdapter(np.arange(N), batch_size=4, shuffle=True)
        found = []
        for _ in range(2):
            found.append([int(i) for batch in adapter.get_numpy_iterator() for i in np.ravel(batch)])
            adapter.on_epoch_end()
        return found

    yield "Keras fit(x, y)", fit


def of_grain() -> Iterator[tuple[str, Orders]]:
    """Yields Grain's global shuffle."""
    import grain

    def shuffled() -> list[list[int]]:
        data = grain.MapDataset.range(N).shuffle(seed=1).repeat(2)
        return [[data[i] for i in range(start, start + N)] for start in (0, N)]

    yield "Grain MapDataset.shuffle(seed=1)", shuffled


LOADERS = {
    "torch": of_torch,
    "accelerate": of_accelerate,
    "datasets": of_datasets,
    "keras": of_keras,
    "grain": of_grain,
}


def orders(package: str) -> None:
    """Prints the first orders of each way of a loader, and how the place of the last example is spread."""
    for name, draw in LOADERS[package]():
        first = draw()[0]
        twice = f", {len(first) - len(set(first))} examples twice" if len(first) > len(set(first)) else ""
        found = [draw() for _ in range(300 if package != "grain" else 1)]
        fresh = "afresh" if any(a != b for a, b in found) else "one order"
        known = "known" if len(set(map(str, found))) == 1 else "unknown"
        places = sorted({order.index(max(order)) for pair in found for order in pair})
        spread = "" if known == "known" else f", last example at places {places[0]} to {places[-1]} of {len(first)}"
        print(f"{name}: {first}; {fresh} each epoch, {known} to another run{twice}{spread}", flush=True)


def main() -> None:
    """Runs the study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loaders", action="store_true", help="look at the loaders that are installed")
    parser.add_argument("--of", choices=LOADERS, help="one loader, in this process")
    arguments = parser.parse_args()
    if arguments.of:
        orders(arguments.of)
    elif not arguments.loaders:
        claims()
    # Each loader gets a process of its own, twice: what both print is known to others.
    for package in LOADERS if arguments.loaders else ():
        if importlib.util.find_spec(package) is None:
            print(f"{package} is not installed")
            continue
        command = [sys.executable, __file__, "--of", package]
        runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
        for one, other in itertools.zip_longest(*(run.splitlines() for run in runs)):
            again = "the same" if one and other and one.partition(";")[0] == other.partition(";")[0] else "another"
            print(f"{one} ({again} in another process)")


if __name__ == "__main__":
    main()
