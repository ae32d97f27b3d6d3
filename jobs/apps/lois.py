"""Lois: which signals are in the air? Averaged power spectra of radio recordings, and the peaks above the noise.

Each file `<channel>/<anything>.c64` is the next stretch of a channel: complex samples, little-endian float32 I and Q.
Samples, the number of spectra and the running noise floor of a channel carry over from file to file, so that spectra do
not depend on where a recording was cut. A file that holds a part of a sample goes into quarantine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import Field

import drainmark as dm
from drainmark import F

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

SAMPLE_BYTES = 8
BINS = 256
"""Samples of a window, and bins of its spectrum; -rate/2 first, zero in the middle."""

HOP = BINS // 2
"""Samples from one window to the next: Hann windows that overlap by half, as Welch takes them."""

WINDOWS = 8
"""Number of windows in the mean that is one spectrum."""

STRIDE = WINDOWS * HOP
"""Samples from the beginning of one spectrum to that of the next."""

BLOCK = 512
"""Spectra that are computed at once: 16 MB of windows."""

FLOOR_WEIGHT = 1 / 16
"""Weight with which a spectrum's own floor moves the running one."""

THRESHOLD = 10.0
"""A detection's power over the noise floor: 10 dB."""

PEAK = "struct<bin: int, power: double, floor: double>"
SPECTRUM = f"""
    channel string, spectrum bigint, first_sample bigint, noise_floor double, power array<double>, peaks array<{PEAK}>
"""


class Params(dm.Params):
    """Parameters of the application: `--set sample_rate=100000`."""

    sample_rate: float = Field(default=1e6, gt=0, description="samples a second")


@dataclass
class Channel:
    """The part of a channel's past that its next spectra need.

    Attributes:
        rest: samples from the beginning of the next spectrum on, as they are in files.
        spectra: number of spectra so far.
        floor: the running noise floor; None before the first.
    """

    rest: bytes = b""
    spectra: int = 0
    floor: float | None = None


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.c64", format="binary", recursive=True))
def recordings(scanned: DataFrame) -> DataFrame:
    """One row per file: `content`, `length`, `source_file`."""
    return scanned


@dm.filter
def broken(recordings: DataFrame) -> Column:
    """Keep the files that end within a sample."""
    return F.col("length") % SAMPLE_BYTES != 0


@dm.functor
def stretches(recordings: DataFrame) -> DataFrame:
    """One row per good file: `channel`, the name of its folder, and `content`."""
    whole = recordings.where(F.col("length") % SAMPLE_BYTES == 0)
    return dm.select(whole, F.regexp_extract("source_file", "([^/]*)/[^/]*$", 1).alias("channel"), "content")


# The heavy work is a stage of its own: the next files are read meanwhile.
@dm.custom(keys=["channel"], state=Channel, output=SPECTRUM, batch="arrow", inputs=[dm.buffered(stretches)])
def analysed(state: Channel | None, stretches: pa.Table) -> tuple[Channel, pa.Table | None]:
    """Return the spectra that a channel's new samples complete, each with its peaks over the noise floor so far."""
    import numpy as np
    import pyarrow as pa

    channel = state or Channel()
    name = stretches["channel"][0].as_py()
    content = b"".join([channel.rest, *stretches["content"].to_pylist()])
    rows, floor, count = [], channel.floor, channel.spectra
    for power in power_spectra(np.frombuffer(content, "<c8")):
        own = float(np.median(power))
        before = own if floor is None else floor
        rows.append((name, count, count * STRIDE, before, power, peaks_of(power, before)))
        count += 1
        if np.isfinite(own):
            floor = before + FLOOR_WEIGHT * (own - before)
    rest = content[(count - channel.spectra) * STRIDE * SAMPLE_BYTES :]
    if not rows:
        return Channel(rest, count, floor), None
    peak = pa.struct([("bin", pa.int32()), ("power", pa.float64()), ("floor", pa.float64())])
    types = [pa.string(), pa.int64(), pa.int64(), pa.float64(), pa.list_(pa.float64()), pa.list_(peak)]
    names = ["channel", "spectrum", "first_sample", "noise_floor", "power", "peaks"]
    columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), types, strict=True)]
    return Channel(rest, count, floor), pa.table(columns, names=names)


def power_spectra(samples: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the averaged spectra of as many whole strides as there are: BINS powers each, in squared sample units.

    A spectrum takes BINS - HOP samples of the stride behind it. White noise of variance v has the level v in each bin.
    """
    import numpy as np

    taper = np.hanning(BINS + 1)[:-1]
    scale = WINDOWS * np.sum(taper**2)
    count = (len(samples) - (BINS - HOP)) // STRIDE
    for first in range(0, count, BLOCK):
        last = min(first + BLOCK, count)
        piece = samples[first * STRIDE : last * STRIDE + BINS - HOP].astype(np.complex128)
        windows = np.lib.stride_tricks.sliding_window_view(piece, BINS)[::HOP] * taper
        power = np.abs(np.fft.fftshift(np.fft.fft(windows, axis=1), axes=1)) ** 2
        yield from power.reshape(last - first, WINDOWS, BINS).sum(axis=1) / scale


def peaks_of(power: np.ndarray, floor: float) -> list[dict[str, Any]]:
    """Return the bins that are higher than both neighbours, around the band's ends too, and stand out of the floor."""
    import numpy as np

    is_peak = (power > THRESHOLD * floor) & (power > np.roll(power, 1)) & (power >= np.roll(power, -1))
    return [{"bin": int(place), "power": float(power[place]), "floor": floor} for place in np.flatnonzero(is_peak)]


@dm.functor
def spectra(analysed: DataFrame) -> DataFrame:
    """Return every spectrum: channel, number from 0, first sample, noise floor before it, power by bin."""
    return dm.select(analysed, "channel", "spectrum", "first_sample", "noise_floor", "power")


@dm.functor
def detections(analysed: DataFrame, params: Params) -> DataFrame:
    """One row per peak: `frequency_hz` from the middle of the band, `seconds` from the channel's first sample."""
    found = dm.select(analysed, "channel", "spectrum", "first_sample", F.explode("peaks").alias("peak"))
    return dm.select(
        found,
        "channel",
        "spectrum",
        (F.col("first_sample") / params.sample_rate).alias("seconds"),
        ((F.col("peak.bin") - BINS // 2) * params.sample_rate / BINS).alias("frequency_hz"),
        F.col("peak.power").alias("power"),
        (10 * F.log10(F.col("peak.power") / F.col("peak.floor"))).alias("snr_db"),
    )


dm.quarantine(broken, reason="ends within a sample of 8 bytes")
dm.sink(spectra, dm.DeltaAppend("lois_spectra"))
dm.sink(detections, dm.DeltaAppend("lois_detections"))
