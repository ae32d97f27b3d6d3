"""The expected sinks of `lois`: the Fourier sum written out, one window at a time; nothing of `jobs`, no FFT."""

from __future__ import annotations

import cmath
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

BINS, HOP, WINDOWS = 256, 128, 8
RATE = 1e6
Row = dict[str, Any]

_HANN = np.array([0.5 - 0.5 * math.cos(2 * math.pi * place / BINS) for place in range(BINS)])
_WAVES = np.array([
    [cmath.exp(-2j * math.pi * (row - BINS // 2) * place / BINS) for place in range(BINS)] for row in range(BINS)
])  # fmt: skip
"""Row k has the wave of bin k; bin 128 is the middle of the band."""


def lois(files: Sequence[Path]) -> dict[str, list[Row]]:
    """Return the rows of both sinks after these files; file n has id n. A spectrum has the id of its last file."""
    channels: dict[str, list[tuple[int, np.ndarray]]] = {}
    for number, path in enumerate(files, 1):
        samples = np.frombuffer(path.read_bytes(), "<f4").astype(float).reshape(-1, 2)
        channels.setdefault(path.parent.name, []).append((number, samples[:, 0] + 1j * samples[:, 1]))
    found: dict[str, list[Row]] = {"lois_spectra": [], "lois_detections": []}
    for channel, parts in channels.items():
        samples = np.concatenate([part for _, part in parts])
        ids = np.repeat([number for number, _ in parts], [len(part) for _, part in parts])
        _channel(channel, samples, ids, found)
    return found


def _channel(channel: str, samples: np.ndarray, ids: np.ndarray, found: dict[str, list[Row]]) -> None:
    floor: float | None = None
    spectrum, first = 0, 0
    while first + (WINDOWS - 1) * HOP + BINS <= len(samples):
        power = np.zeros(BINS)
        for window in range(WINDOWS):
            begin = first + window * HOP
            power += np.abs(_WAVES @ (samples[begin : begin + BINS] * _HANN)) ** 2
        power /= WINDOWS * float(_HANN @ _HANN)
        own = statistics.median(power.tolist())
        floor = own if floor is None else floor
        number = int(ids[first + (WINDOWS - 1) * HOP + BINS - 1])
        seen = {"_sequence_id": number, "channel": channel, "spectrum": spectrum}
        found["lois_spectra"].append({**seen, "first_sample": first, "noise_floor": floor, "power": power.tolist()})
        for place in range(BINS):
            left, right = power[place - 1], power[(place + 1) % BINS]
            if power[place] > 10 * floor and power[place] > left and power[place] >= right:
                found["lois_detections"].append({
                    **seen, "seconds": first / RATE, "frequency_hz": (place - 128) * RATE / BINS,
                    "power": float(power[place]), "snr_db": 10 * math.log10(power[place] / floor),
                })  # fmt: skip
        floor += (own - floor) / 16
        spectrum, first = spectrum + 1, first + WINDOWS * HOP
