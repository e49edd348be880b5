"""Settings and printed figures of Bu, Dong, Long and Su (2020), "Deep learning with Gaussian differential privacy".

A row's number of steps follows from its epochs: T = epochs / p, which the paper says in the note of Table 1 ("the
number of epochs is equal to p T"). It is whole for no row of Tables 1 to 4 but the one with p = 1/80.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One private model.

    Attributes:
        name: data set and row.
        table: number of the table.
        noise_multiplier: sigma.
        batch_size: expected size of a batch.
        examples: number of training examples.
        epochs: p T.
        delta: at which the epsilons are.
        mu: printed mu of the central limit theorem, eq. 3.1.
        clt_epsilon: printed epsilon of that mu, eq. 3.2.
        ma_epsilon: printed epsilon of the moments accountant.
    """

    name: str
    table: int
    noise_multiplier: float
    batch_size: int
    examples: int
    epochs: int
    delta: float
    mu: float
    clt_epsilon: float
    ma_epsilon: float

    @property
    def sampling_rate(self) -> float:
        """The probability p of each example to be in a batch."""
        return self.batch_size / self.examples

    @property
    def real_steps(self) -> float:
        """Epochs over p, which need not be whole: what the printed mu is made of."""
        return self.epochs * self.examples / self.batch_size

    @property
    def steps(self) -> int:
        """Whole noisy updates that the epochs imply: those that fit, the nearest number."""
        return round(self.real_steps)


TABLES: tuple[Row, ...] = (
    Row("MNIST 1", 1, 1.3, 256, 60000, 15, 1e-5, 0.23, 0.83, 1.19),
    Row("MNIST 2", 1, 1.1, 256, 60000, 60, 1e-5, 0.57, 2.32, 3.01),
    Row("MNIST 3", 1, 0.7, 256, 60000, 45, 1e-5, 1.13, 5.07, 7.10),
    Row("MNIST 4", 1, 0.6, 256, 60000, 62, 1e-5, 2.00, 9.98, 13.27),
    Row("MNIST 5", 1, 0.55, 256, 60000, 68, 1e-5, 2.76, 14.98, 18.72),
    Row("MNIST 6", 1, 0.5, 256, 60000, 100, 1e-5, 4.78, 31.12, 32.40),
    Row("Adult", 2, 0.55, 256, 29305, 18, 1e-5, 2.03, 10.20, 14.70),
    Row("IMDb", 3, 0.56, 512, 25000, 9, 1e-5, 2.07, 10.43, 15.24),
    Row("MovieLens", 4, 0.6, 1, 80, 20, 1e-6, 1.94, 10.61, 15.39),
)
"""Tables 1 to 4. MovieLens has p = 1/80 of a number of examples that the paper does not say."""


class NoiseScales(NamedTuple):
    """Two noise multipliers that are said to give one epsilon at delta = 1e-5, MNIST, p = 256/60000 (section 4.2)."""

    moments_accountant: float
    clt: float
    epochs: int
    epsilon: float
    mu: float


SECTION_4_2: tuple[NoiseScales, ...] = (
    NoiseScales(1.3, 1.06, 20, 1.34, 0.35),
    NoiseScales(0.7, 0.638, 70, 8.68, 1.78),
)
"""The caption of Figure 4."""
