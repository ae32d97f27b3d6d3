"""The shipped applications of files and periods, killed at every step: all end in the golden run (V54, V168).

`log_watch` and `host_watch` are graphs of the golden matrix; `vwap` and `lois` are killed beside their oracles.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

import drainmark as dm
from drainmark.jobs.failpoints import OF_AUTONOMOUS, FailPoint
from drainmark.jobs.testing.bank import bank_files
from drainmark.orchestration.testing.crash import matrix
from drainmark.orchestration.testing.crash.trial import Proof

pytestmark = [pytest.mark.recovery, pytest.mark.spark, pytest.mark.timeout(1800)]

MAIL = {
    "a.txt": "Subject: budget\n\nThe budget of May is the budget of April.\n",
    "b.txt": "To: all\n\nMay I ask for a day off?\n",
    "c.txt": "no words 123\n",
    "d.txt": "all of May",
}


def assert_every_step_was_killed(proof: Proof) -> None:
    """Require a kill at every step of the consistent part: a step that no run passes would be a hole."""
    wanted = {point for point in FailPoint if matrix.is_of_group(point)} - {*OF_AUTONOMOUS}
    assert wanted <= {cell.point for cell in proof.failures}


@pytest.mark.seed("V175")
def test_enron_by_file_survives_sigkill() -> None:
    (proof,) = dm.testing.assert_exactly_once("enron_ds", MAIL, actions=("kill",), groupings=(2,))
    assert_every_step_was_killed(proof)


@pytest.mark.seed("V176")
def test_enron_by_folder_survives_sigkill() -> None:
    """There are five starts, and each state is a slice over all of them. Slices are small, so there are several."""
    files = {
        name: {f"{folder}/{file}": text * (place + 1) for file, text in MAIL.items()}
        for place, (name, folder) in enumerate(
            {"first": "1", "fourth": "4", "fifth": "5", "sixth": "6", "last": "8"}.items()
        )
    }
    (proof,) = dm.testing.assert_exactly_once(
        "enron_fs", files, actions=("kill",), groupings=(2,), settings={"slice_bytes": 200}
    )
    assert proof.states >= 3
    assert_every_step_was_killed(proof)
    assert FailPoint.SLICE_LISTED in {cell.point for cell in proof.failures}


@pytest.mark.seed("V54")
def test_payments_survive_sigkill_at_every_step() -> None:
    """There are no warnings: `test_autonomous.py` shows the warnings that a kill loses. The rest is like any region."""
    payments: Mapping[str, str] = {f"{number}.csv": text for number, text, _ in bank_files(4, rows=12)}
    (proof,) = dm.testing.assert_exactly_once(
        "bank_alerts", {"transactions": payments, "warnings": {}}, actions=("kill",), groupings=(2,)
    )
    assert proof.states == len(payments)
    assert_every_step_was_killed(proof)
    assert any(cell.point.value.startswith("feed.") for cell in proof.failures)
