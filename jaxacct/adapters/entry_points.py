"""What other libraries compute by one call, by one call."""

from __future__ import annotations

from fractions import Fraction

from jaxacct import certified, validation
from jaxacct.adapters.parts import MOST_STEPS
from jaxacct.bounds import Bounds
from jaxacct.mechanisms import GaussianWithoutReplacement, PoissonSubsampledGaussian
from jaxacct.rates import up


def compute_dp_sgd_privacy(n: int, batch_size: int, noise_multiplier: float, epochs: float, delta: float) -> Bounds:
    """Returns bounds on epsilon of DP-SGD, by the arguments of TensorFlow Privacy's function of this name.

    Args:
        n: number of examples.
        batch_size: expected number of examples in a batch, at most n.
        noise_multiplier: standard deviation of the noise over the clipping norm.
        epochs: above 0; there are ``ceil(epochs * n / batch_size)`` steps.
        delta: failure probability in (0, 1).

    Formal guarantee: that of :func:`jaxacct.epsilon`, for batches by Poisson's law at the rate batch_size / n under
    "add_or_remove", and for clipping by example. Where data was shuffled, or microbatches hold several examples, what
    ran is another mechanism.

    Raises ValueError or TypeError where an argument is out of range.

    >>> print(compute_dp_sgd_privacy(60_000, 256, 1.1, 15, 1e-5))
    [1.133874, 1.133875]
    """
    validation.check_whole(n, "n", 1, MOST_STEPS, "the number of examples")
    validation.check_whole(batch_size, "batch_size", 1, n, "the size of a batch")
    validation.check_positive(epochs, "epochs")
    steps = -(-Fraction(float(epochs)) * n // batch_size)
    return certified.epsilon(
        PoissonSubsampledGaussian(noise_multiplier, up(Fraction(batch_size, n))), int(steps), delta
    )


def flower_privacy(
    noise_multiplier: float, num_sampled_clients: int, num_clients: int, rounds: int, delta: float
) -> Bounds:
    """Returns bounds on epsilon of Flower's central differential privacy with fixed clipping, for its clients.

    Args:
        noise_multiplier: as of ``DifferentialPrivacyServerSideFixedClipping`` (or ``ClientSide``): the noise of the
            average is this times the clipping norm over the number of clients in it.
        num_sampled_clients: clients in each round, as Flower is told.
        num_clients: clients to choose from, taken as public.
        rounds: number of rounds.
        delta: failure probability in (0, 1), well below one over ``num_clients``.

    Formal guarantee: that of :func:`jaxacct.epsilon`, for one client's data replaced by any other, where every round
    samples its clients uniformly without replacement, all of them answer, and all count alike in the average.

    Raises ValueError or TypeError where an argument is out of range.

    >>> print(flower_privacy(4.0, num_sampled_clients=50, num_clients=10_000, rounds=1000, delta=1e-5))
    [0.3380154, 0.3380155]
    """
    validation.check_whole(num_clients, "num_clients", 1, MOST_STEPS, "the number of clients")
    validation.check_whole(num_sampled_clients, "num_sampled_clients", 1, num_clients, "the clients of a round")
    rate = up(Fraction(num_sampled_clients, num_clients))
    return certified.epsilon(GaussianWithoutReplacement(noise_multiplier, rate), rounds, delta, relation="replace")
