"""The benchmark's input: seeded CSV files of 2000 rows, and the counts that any correct run over them must have."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SCHEMA = "id bigint, k string, amount double, note string"
ROWS_A_FILE = 2000
KEYS = 100
LIMIT = 50.0
_TOLERANCE = 1e-9


class WrongResult(Exception):
    """An error: a run's tables do not match its input, so its figures mean nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The result that a run over some files must have.

    Attributes:
        kept: number of rows above the limit.
        totals: key -> (rows, sum of the amounts).
    """

    kept: int
    totals: Mapping[str, tuple[int, float]]

    def check(self, who: str, kept: int, totals: Mapping[str, tuple[int, float]]) -> None:
        """Compare a run's tables with the input.

        Raises:
            WrongResult: the number of rows, a key, a count or a sum (by more than 1e-9 of it) differs.
        """
        if kept != self.kept:
            msg = f"{who}: {kept} rows in the append sink, expected {self.kept}"
            raise WrongResult(msg)
        if totals.keys() != self.totals.keys():
            msg = f"{who}: {len(totals)} keys, expected {len(self.totals)}"
            raise WrongResult(msg)
        for key, (count, total) in self.totals.items():
            found_count, found_total = totals[key]
            if found_count != count or not math.isclose(found_total, total, rel_tol=_TOLERANCE):
                msg = f"{who}: {key!r} has {found_count} rows, sum {found_total}; expected {count}, {total}"
                raise WrongResult(msg)


def write_files(folder: Path, count: int, *, seed: int = 7) -> tuple[Expected, int]:
    """Write `count` files `000000.csv`, … of 2000 rows each, about 60 KB.

    Returns:
        the result that a run over them must have, and the bytes written.
    """
    folder.mkdir(parents=True)
    counts, sums = [0] * KEYS, [0.0] * KEYS
    kept = size = 0
    for number in range(count):
        chance = random.Random(seed * 1_000_003 + number)
        lines = []
        for row in range(ROWS_A_FILE):
            key, cents = chance.randrange(KEYS), chance.randrange(10_001)
            amount = cents / 100
            counts[key] += 1
            sums[key] += amount
            kept += amount > LIMIT
            lines.append(f"{number * ROWS_A_FILE + row},k{key:02d},{amount},note {key * cents:07d}\n")
        size += (folder / f"{number:06d}.csv").write_text("".join(lines))
    totals = {f"k{key:02d}": (counts[key], sums[key]) for key in range(KEYS) if counts[key]}
    return Expected(kept=kept, totals=totals), size


def as_totals(keys: Sequence[str], counts: Sequence[int], sums: Sequence[float]) -> dict[str, tuple[int, float]]:
    """Return columns as key -> (rows, sum)."""
    return {key: (count, total) for key, count, total in zip(keys, counts, sums, strict=True)}
