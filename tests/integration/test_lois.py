"""`lois` on generated recordings and on real waveforms, against the Fourier sum written out (V179)."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import oracle_lois
import pytest
from harness import opened, rows, run_once, settle

import drainmark as dm
from drainmark.jobs.apps import lois
from drainmark.jobs.testing.radio import NOISE_VARIANCE, carriers_of, generate_radio, write_radio
from drainmark.orchestration.testing.processing import rewind
from drainmark.orchestration.workplace.workplace import Workplace

SOUNDER = Path(__file__).parents[3] / "shared" / "data" / "lois" / "sounder"
REGION = "lois/recordings"
PLACE = {"lois_spectra": ("channel", "spectrum"), "lois_detections": ("channel", "spectrum", "frequency_hz")}


def by_channel(files: Sequence[Path]) -> list[Path]:
    """Return files in the order in which the scan takes them."""
    return sorted(files, key=str)


def assert_equal(expected: dict[str, list[dict[str, Any]]], workplace: Workplace, *, ids: bool = True) -> None:
    """Assert that rows are the same, floats to about eight digits."""
    for table, names in PLACE.items():
        found = sorted(rows(workplace, REGION, table), key=lambda row: [row[name] for name in names])
        wanted = sorted(expected[table], key=lambda row: [row[name] for name in names])
        assert len(found) == len(wanted), table
        for row, other in zip(found, wanted, strict=True):
            assert row.keys() == other.keys()
            for name in row if ids else row.keys() - {"_sequence_id"}:
                if isinstance(row[name], float | list):
                    assert row[name] == pytest.approx(other[name], rel=1e-8, abs=1e-9), (table, name)
                else:
                    assert row[name] == other[name], (table, name)


@pytest.mark.spark
@pytest.mark.seed("V179")
def test_generated_recordings_equal_the_oracle_also_after_a_rewind(workplace: Workplace, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    made = write_radio(inbox, seed=2, channels=2, files_per_channel=3, samples_per_file=2700)
    settle(inbox)
    files = by_channel([inbox / file.name for file in made])
    application = opened("lois", inbox)
    run_once(workplace, application, max_group=8)
    expected = oracle_lois.lois(files)
    assert expected["lois_detections"]
    assert_equal(expected, workplace)
    rewind(workplace, REGION, 4, 1000)
    assert_equal(oracle_lois.lois(files[:4]), workplace)
    run_once(workplace, application)
    assert_equal(expected, workplace, ids=False)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.skipif(not SOUNDER.is_dir(), reason="the shared data is absent")
def test_the_waveforms_of_a_sounder_equal_the_oracle(workplace: Workplace, tmp_path: Path) -> None:
    """Two real phase codes, each as a channel; the files are cut in the middle of a spectrum."""
    inbox, files = tmp_path / "inbox", []
    for path in sorted(SOUNDER.glob("*.bin.gz")):
        content = gzip.decompress(path.read_bytes())[: 30_000 * lois.SAMPLE_BYTES]
        for number, first in enumerate(range(0, len(content), 11_111 * lois.SAMPLE_BYTES)):
            file = inbox / path.name.partition(".")[0] / f"{number}.c64"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content[first : first + 11_111 * lois.SAMPLE_BYTES])
            files.append(file)
    settle(inbox)
    run_once(workplace, opened("lois", inbox), max_group=4)
    assert len(files) == 6
    assert_equal(oracle_lois.lois(by_channel(files)), workplace)


@pytest.mark.spark
def test_a_file_that_ends_within_a_sample_is_refused_and_the_channel_goes_on(
    workplace: Workplace, tmp_path: Path
) -> None:
    inbox = tmp_path / "inbox"
    files = [inbox / file.name for file in write_radio(inbox, channels=1, files_per_channel=3, samples_per_file=1500)]
    files[1].write_bytes(files[1].read_bytes()[:-3])
    settle(inbox)
    reports = run_once(workplace, opened("lois", inbox))
    (refused,) = rows(workplace, REGION, "lois_quarantine")
    assert refused == {
        "_sequence_id": 2, "source_file": str(files[1]), "position": 1, "raw": '{"length":11997}',
        "reason": "ends within a sample of 8 bytes",
    }  # fmt: skip
    assert sum(report.rows_in for report in reports) == 3
    found = [row["_sequence_id"] for row in rows(workplace, REGION, "lois_spectra")]
    assert sorted(found) == [1, 3]


def test_white_noise_has_the_level_of_its_variance_and_carriers_are_where_they_are() -> None:
    size = 40_000
    content = b"".join(file.content for file in generate_radio(channels=1, files_per_channel=1, samples_per_file=size))
    spectra = np.array(list(lois.power_spectra(np.frombuffer(content, "<c8"))))
    assert len(spectra) == (size - 128) // 1024
    assert np.median(spectra) == pytest.approx(NOISE_VARIANCE, rel=0.1)
    for carrier in carriers_of(1, size):
        middle = spectra[(carrier.first + carrier.last) // 2 // lois.STRIDE]
        found = [peak["bin"] for peak in lois.peaks_of(middle, NOISE_VARIANCE)]
        assert any(abs(place - 128 - carrier.frequency * 256) <= 1 for place in found), carrier


def test_what_is_no_number_leaves_the_noise_floor_as_it_was() -> None:
    pa = pytest.importorskip("pyarrow")
    quiet = np.ones(3 * lois.STRIDE, "<c8")
    spoilt = quiet.copy()
    spoilt[lois.STRIDE + 300] = np.nan

    def analysed(samples: Any) -> Any:
        stretches = pa.table({"channel": ["a"], "content": pa.array([samples.tobytes()], pa.binary())})
        return lois.analysed(None, stretches)

    channel, spectra = analysed(spoilt)
    assert channel.spectra == 2
    assert spectra["noise_floor"].to_pylist() == analysed(quiet)[1]["noise_floor"].to_pylist()[:2]
    assert np.isfinite(channel.floor)


def radio() -> dict[str, bytes]:
    return {file.name: file.content for file in generate_radio(channels=2, files_per_channel=2, samples_per_file=1800)}


@pytest.mark.recovery
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_killed_at_any_step_it_recovers_to_the_golden_run() -> None:
    (proof,) = dm.testing.assert_exactly_once("lois", radio(), actions=("kill",), groupings=(2,))
    assert len(proof.failures) > 10
