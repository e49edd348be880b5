"""A torch model trained by Opacus's engine with these accountants: saved, loaded, and accounted after the fact.

    python -m bench.peers.opacus_engine  # with torch and opacus installed

Prints a line for each check and each figure; fails where one does not hold.
"""

import pathlib
import tempfile
import time

import opacus
import torch
from opacus.accountants.utils import get_noise_multiplier

import jaxacct as ja
from jaxacct.adapters.opacus import checkpoint_history, from_history

DELTA = 1e-5


def engine_run(accountant: str, folder: pathlib.Path) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(2000, 20)
    labels = (inputs[:, 0] > 0).long()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, labels), batch_size=100)
    model = torch.nn.Linear(20, 2)
    engine = opacus.PrivacyEngine(accountant=accountant)
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    for _ in range(3):
        for batch, target in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(batch), target).backward()
            optimizer.step()
    accuracy = (model(inputs).argmax(1) == labels).float().mean().item()
    spent = engine.get_epsilon(DELTA)
    assert accuracy > 0.9, accuracy
    assert spent == float(ja.epsilon(ja.PoissonSubsampledGaussian(1.0, 0.05), 60, DELTA)) or accountant != "jaxacct"

    path = folder / f"{accountant}.pt"
    engine.save_checkpoint(path=path, module=model, optimizer=optimizer)
    other = opacus.PrivacyEngine(accountant=accountant)
    other.load_checkpoint(path=path, module=model, optimizer=optimizer)
    assert len(other.accountant) == len(engine.accountant)
    assert other.get_epsilon(DELTA) == spent
    after = ja.epsilon(*from_history(checkpoint_history(path)), delta=DELTA)
    assert after.lower <= spent + 1e-3
    print(f"{accountant:12} accuracy {accuracy:.3f}, epsilon {spent:.4f}; from the checkpoint {after}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for accountant in ("jaxacct", "jaxacct-rdp", "prv", "rdp"):
            engine_run(accountant, pathlib.Path(folder))
    target = dict(target_epsilon=1.0, target_delta=DELTA, sample_rate=0.01, steps=1000)
    for accountant in ("jaxacct", "jaxacct-rdp", "prv", "rdp"):
        start = time.process_time()
        noise = get_noise_multiplier(**target, accountant=accountant, epsilon_tolerance=1e-3)
        print(f"get_noise_multiplier by {accountant:12} {noise:.5f}, {time.process_time() - start:.2f} CPU s")


if __name__ == "__main__":
    main()
