"""The pair (epoch, id) is packed into txnVersion, which compares as the pair does (X3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainmark.jobs.protocol.records.ids import app_id, split_txn_version, txn_version

EPOCHS = st.integers(0, 2**31 - 1)
IDS = st.integers(0, 2**32 - 1)


@given(EPOCHS, IDS)
def test_a_version_gives_back_epoch_and_id_and_fits_a_long(epoch: int, number: int) -> None:
    version = txn_version(epoch, number)
    assert split_txn_version(version) == (epoch, number)
    assert 0 <= version < 2**63


@given(st.tuples(EPOCHS, IDS), st.tuples(EPOCHS, IDS))
@pytest.mark.seed("X3")
def test_versions_compare_as_the_pairs_do(one: tuple[int, int], other: tuple[int, int]) -> None:
    assert (txn_version(*one) < txn_version(*other)) == (one < other)


@pytest.mark.parametrize(("epoch", "number"), [(-1, 0), (2**31, 0), (0, -1), (0, 2**32)])
def test_what_does_not_fit_is_refused(epoch: int, number: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        txn_version(epoch, number)


def test_the_application_id_is_constant_over_epochs() -> None:
    assert app_id("log_watch/lines") == "drainmark/log_watch/lines"
