"""Features of images that no data chose: a two-layer scattering transform, and group normalization of its channels.

Mallat (2012), "Group invariant scattering"; Bruna & Mallat (2013), "Invariant scattering convolution networks", with
the Morlet wavelets given there. A linear model on them is the private one of Tramèr & Boneh (2021), "Differentially
private learning needs better features (or much more data)". Filters and normalization depend on the size of an image
only, and its features on that image alone: nothing of this costs budget.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

SCALES, ANGLES = 2, 8
CHANNELS = 1 + SCALES * ANGLES + ANGLES**2 * SCALES * (SCALES - 1) // 2
GROUPS = 27
"""Of three channels each, as Tramèr & Boneh have them for MNIST."""

FLOOR = 1e-10
"""Added to variances."""

STRIDE = 2**SCALES
BATCH = 100
"""Images transformed together: bounds the memory, changes no result."""


def gaussian(size: int, deviation: float, frequency: float = 0.0, angle: float = 0.0, slant: float = 1.0) -> np.ndarray:
    """Returns a Gaussian window times a plane wave on a periodic grid (size, size), of mass 1 where it does not wave.

    ``slant`` is the ratio of its width along the wave to that across; ``deviation`` is that along.
    """
    wrapped = np.zeros((size, size), complex)
    for shift in np.ndindex(5, 5):
        y, x = (np.arange(size) + size * (step - 2) for step in shift)
        along = np.cos(angle) * x[None, :] + np.sin(angle) * y[:, None]
        across = -np.sin(angle) * x[None, :] + np.cos(angle) * y[:, None]
        window = np.exp(-(along**2 + (slant * across) ** 2) / (2 * deviation**2))
        wrapped += window * np.exp(1j * frequency * along)
    return wrapped * slant / (2 * np.pi * deviation**2)


def morlet(size: int, scale: int, angle: float) -> np.ndarray:
    """Returns the spectrum (size, size) of a wavelet without mean: real, as the wavelet is Hermitian.

    >>> bool(abs(morlet(36, 0, 0.3)[0, 0]) < 1e-12)
    True
    """
    deviation, frequency, slant = 0.8 * 2**scale, 0.75 * np.pi / 2**scale, 4 / ANGLES
    wave = gaussian(size, deviation, frequency, angle, slant)
    window = gaussian(size, deviation, 0.0, angle, slant)
    return np.fft.fft2(wave - window * wave.sum() / window.sum()).real


@functools.lru_cache
def filters(size: int) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Returns the wavelets' spectra (scales, angles, size, size) and, for each resolution, the low pass as a matrix.

    The low pass is separable. Its matrix (size / stride - 2, size / 2^j) keeps every ``STRIDE``-th place of the
    original grid and leaves out the padded border.
    """
    angles = [(ANGLES - 1 - number) * np.pi / ANGLES for number in range(ANGLES)]
    waves = np.array([[morlet(size, scale, angle) for angle in angles] for scale in range(SCALES)])
    lows = []
    for scale in range(SCALES):
        row = gaussian(size >> scale, 0.8 * 2 ** (SCALES - 1 - scale)).real.sum(axis=0)
        places = np.arange(STRIDE, size - STRIDE, STRIDE) >> scale
        lows.append(np.stack([np.roll(row, place) for place in places]))
    return waves.astype(np.float32), tuple(low.astype(np.float32) for low in lows)


def scattering(images: Float[Array, "batch side side"]) -> Float[Array, "batch channels rows columns"]:
    """Returns the scattering coefficients of square images, 81 channels at a quarter of their resolution.

    >>> scattering(jnp.ones((1, 28, 28))).shape
    (1, 81, 7, 7)
    """
    padded = jnp.pad(images, [(0, 0), (STRIDE, STRIDE), (STRIDE, STRIDE)], mode="reflect")
    size = padded.shape[-1]
    waves, lows = filters(size)

    def smooth(maps: Array, scale: int) -> Array:
        low = lows[scale]
        return jnp.einsum("ay,...yx,bx->...ab", low, maps, low)

    def halved(spectrum: Array) -> Array:
        """Returns the spectrum of every second place."""
        half = size // 2
        return spectrum.reshape(*spectrum.shape[:-2], 2, half, 2, half).mean(axis=(-4, -2))

    spectrum = jnp.fft.fft2(padded)[:, None]
    fine = jnp.abs(jnp.fft.ifft2(spectrum * waves[None, 0]))
    coarse = jnp.abs(jnp.fft.ifft2(halved(spectrum * waves[None, 1])))
    second = jnp.abs(jnp.fft.ifft2(halved(jnp.fft.fft2(fine)[:, :, None] * waves[None, None, 1])))
    second = second.reshape(len(images), ANGLES**2, size // 2, size // 2)
    parts = smooth(padded[:, None], 0), smooth(fine, 0), smooth(coarse, 1), smooth(second, 1)
    return jnp.concatenate(parts, axis=1)


def group_normalized(maps: Float[Array, "batch channels rows columns"]) -> Float[Array, "batch features"]:
    """Returns each example's channels with mean 0 and variance 1 in each of the groups: all examples have one norm.

    A group without variance becomes 0. Waves of the second layer are a thousand times weaker than the image: what is
    added to the variance against that is less than theirs by far.

    >>> features = group_normalized(scattering(jnp.eye(28)[None]))
    >>> features.shape, bool(abs(jnp.linalg.norm(features) - 63) < 0.1)
    ((1, 3969), True)
    """
    grouped = maps.reshape(len(maps), GROUPS, -1)
    centered = grouped - grouped.mean(axis=-1, keepdims=True)
    return (centered * jax.lax.rsqrt(jnp.square(centered).mean(axis=-1, keepdims=True) + FLOOR)).reshape(len(maps), -1)


def features(images: np.ndarray) -> np.ndarray:
    """Returns the normalized features (examples, 3969), float32, of images (examples, side, side, 1)."""
    transform = jax.jit(lambda batch: group_normalized(scattering(batch)))
    squares = images[..., 0]
    found = None
    for start in range(0, len(squares), BATCH):
        rows = squares[start : start + BATCH]
        filled = np.pad(rows, [(0, BATCH - len(rows)), (0, 0), (0, 0)])
        part = np.asarray(transform(filled))[: len(rows)]
        found = np.empty((len(squares), part.shape[1]), np.float32) if found is None else found
        found[start : start + len(rows)] = part
    assert found is not None
    return found
