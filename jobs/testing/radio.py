"""Recordings of a made-up band on several channels, for the demo, tests and benchmarks: noise and carriers, one seed.

A file depends only on (seed, channel, number) and its size. All channels have the same carriers; each comes and goes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

NOISE_VARIANCE = 2.0
"""Variance of a complex sample without carriers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrier:
    """A signal of constant frequency.

    Attributes:
        frequency: in cycles a sample, from -0.5 to 0.5.
        amplitude: of the samples.
        first, last: samples of a channel from which (inclusive) and to which (exclusive) it is in the air.
    """

    frequency: float
    amplitude: float
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RadioFile:
    """One generated file.

    Attributes:
        name: path below the folder, `<channel>/<number:04d>.c64`.
        content: complex samples, little-endian float32 I and Q.
    """

    name: str
    content: bytes

    def write(self, folder: Path) -> Path:
        """Write the file below `folder` under another name, then rename it: a scan sees all of it or nothing."""
        path = folder / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.unfinished")
        unfinished.write_bytes(self.content)
        os.replace(unfinished, path)
        return path


def carriers_of(seed: int, samples: int, count: int = 3) -> tuple[Carrier, ...]:
    """Return the carriers of this seed, each in the air for a half of `samples` or more."""
    import numpy as np

    chance = np.random.default_rng([seed, samples, count])
    return tuple(
        Carrier(
            frequency=float(chance.uniform(-0.48, 0.48)),
            amplitude=float(chance.uniform(0.8, 2.0)),
            first=int(chance.integers(0, samples // 4)),
            last=int(chance.integers(3 * samples // 4, samples)),
        )
        for _ in range(count)
    )


def generate_radio(
    *, seed: int = 1, channels: int = 2, files_per_channel: int = 4, samples_per_file: int = 5000, carriers: int = 3
) -> Iterator[RadioFile]:
    """Yield the files of all channels, stretch by stretch.

    Args:
        seed: of all random values.
        samples_per_file: eight bytes each; need not be whole spectra.
        carriers: number of signals.
    """
    signals = carriers_of(seed, files_per_channel * samples_per_file, carriers)
    for number in range(files_per_channel):
        for channel in range(channels):
            samples = _samples(seed, channel, number, samples_per_file, signals)
            yield RadioFile(name=f"antenna{channel}/{number:04d}.c64", content=samples.astype("<c8").tobytes())


def _samples(seed: int, channel: int, number: int, size: int, carriers: tuple[Carrier, ...]) -> np.ndarray:
    import numpy as np

    chance = np.random.default_rng([seed, channel, number, size])
    samples = chance.normal(scale=(NOISE_VARIANCE / 2) ** 0.5, size=(size, 2)) @ np.array([1, 1j])
    times = number * size + np.arange(size)
    for carrier in carriers:
        wave = carrier.amplitude * np.exp(2j * np.pi * (carrier.frequency * times + 0.3 * channel))
        samples += np.where((times >= carrier.first) & (times < carrier.last), wave, 0)
    return np.asarray(samples)


def write_radio(
    folder: Path,
    *,
    seed: int = 1,
    channels: int = 2,
    files_per_channel: int = 4,
    samples_per_file: int = 5000,
    carriers: int = 3,
) -> tuple[RadioFile, ...]:
    """Write the files of `generate_radio` below a folder and return them, in their order."""
    files = tuple(
        generate_radio(
            seed=seed,
            channels=channels,
            files_per_channel=files_per_channel,
            samples_per_file=samples_per_file,
            carriers=carriers,
        )
    )
    for file in files:
        file.write(folder)
    return files
