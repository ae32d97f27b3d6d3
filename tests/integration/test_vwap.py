"""`vwap` on the real feed and on a generated one, against plain Python; the same with failures (V178, I11)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import oracle_vwap
import oracles
import pytest
from harness import opened, rows, run_once, settle

import drainmark as dm
from drainmark.jobs.apps import vwap
from drainmark.jobs.testing.market import HEADER, write_market
from drainmark.orchestration.testing.processing import rewind
from drainmark.orchestration.workplace.workplace import Workplace

FEED = Path(__file__).parents[3] / "shared" / "data" / "vwap" / "ibm-streams" / "TradesAndQuotes.csv.gz"
REGION = "vwap/records"
SINKS = ("vwap_trades", "vwap_bargains")
TABLES = (*SINKS, "vwap_quarantine")

needs_feed = pytest.mark.skipif(not FEED.is_file(), reason="the shared data is absent")


def assert_equal(expected: dict[str, list[Any]], workplace: Workplace, *, ids: bool = True) -> None:
    for table in TABLES:
        found = rows(workplace, REGION, table)
        for row in found:
            row.pop("raw", None)
        assert not oracles.differences(rounded(expected[table]), rounded(found), ids=ids), table


def rounded(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with rounded floats, which are equal up to a relative difference of about 1e-9."""
    return [{key: float(f"{v:.10g}") if isinstance(v, float) else v for key, v in row.items()} for row in found]


@needs_feed
def test_the_oracle_knows_the_published_facts_of_the_feed() -> None:
    found = oracle_vwap.vwap([FEED])
    assert [len(found[table]) for table in TABLES] == [6571, 3053, 16]


@needs_feed
@pytest.mark.spark
@pytest.mark.seed("V178")
def test_the_real_feed_equals_the_oracle_and_no_row_is_lost(workplace: Workplace, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (inbox / FEED.name).write_bytes(FEED.read_bytes())
    settle(inbox)
    reports = run_once(workplace, opened("vwap", inbox))
    assert_equal(oracle_vwap.vwap([inbox / FEED.name]), workplace)
    assert [(report.rows_in, report.rows_quarantined) for report in reports] == [(29_999, 16)]
    refused = rows(workplace, REGION, "vwap_quarantine")
    assert refused[0]["raw"].startswith('{"#RIC":"AEC","Date[G]":"27-DEC-2005"')


@pytest.mark.slow
@pytest.mark.spark
def test_generated_files_equal_the_oracle_also_after_a_rewind(workplace: Workplace, tmp_path: Path) -> None:
    made = write_market(tmp_path / "inbox", seed=5, files=5, records_per_file=120, symbols=9)
    settle(tmp_path / "inbox")
    files = [tmp_path / "inbox" / file.name for file in made]
    application = opened("vwap", tmp_path / "inbox")
    run_once(workplace, application, max_group=3)
    expected = oracle_vwap.vwap(files)
    assert len(expected["vwap_quarantine"]) == sum(file.unpriced for file in made) > 0
    assert_equal(expected, workplace)
    rewind(workplace, REGION, 2, 1000)
    assert_equal(oracle_vwap.vwap(files[:2]), workplace)
    run_once(workplace, application)
    assert_equal(expected, workplace, ids=False)


@pytest.mark.spark
@pytest.mark.seed("V178")
def test_what_is_no_trade_and_no_quote_or_has_no_moment_is_refused(workplace: Workplace, tmp_path: Path) -> None:
    places = {name: index for index, name in enumerate(HEADER.split(","))}

    def record(**values: str) -> str:
        fields = [""] * len(places)
        for name, value in {"#RIC": "ZZZZ", "Date[G]": "27-DEC-2005", "Time[G]": "14:30:00.000", **values}.items():
            fields[places[name]] = value
        return ",".join(fields)

    lines = [
        HEADER,
        record(Type="Trade", Price="10", Volume="0"),
        record(Type="Correction"),
        record(Type="Trade", Price="10", Volume="100", **{"Time[G]": "25:00:00.000"}),
        record(Type="Quote", **{"#RIC": "", "Ask Price": "9"}),
        record(Type="Trade", Price="10"),
        record(Type="Quote", **{"Ask Price": "9", "Ask Size": "2"}),
        record(Type="Trade", Price="11", Volume="100"),
        record(Type="Quote", **{"Ask Price": "10.5"}),
        record(Type="Trade", Price="14", Volume="50"),
    ]
    path = tmp_path / "inbox" / "a.csv"
    path.parent.mkdir()
    path.write_text("\n".join(lines))
    settle(path.parent)
    run_once(workplace, opened("vwap", path.parent))
    refused = sorted((row["position"], row["reason"]) for row in rows(workplace, REGION, "vwap_quarantine"))
    assert refused == [
        (2, "neither a trade nor a quote"),
        (3, "no moment"),
        (4, "no symbol"),
        (5, "a trade without a price or a volume"),
    ]
    averages = [row["vwap"] for row in rows(workplace, REGION, "vwap_trades")]
    assert averages == [None, 11.0, 12.0], "no shares have no average"
    (bargain,) = rows(workplace, REGION, "vwap_bargains")
    assert (bargain["ask_price"], bargain["ask_size"], bargain["bargain_index"]) == (10.5, None, None)


def test_an_average_does_not_depend_on_what_came_before_the_window() -> None:
    np = pytest.importorskip("numpy")
    chance = np.random.default_rng(2)
    prices, volumes = chance.uniform(1, 100, 50), chance.integers(1, 5000, 50)
    averages = vwap.moving_averages(prices, volumes)
    for start in range(40):
        assert vwap.moving_averages(prices[start:], volumes[start:])[3:].tolist() == averages[start + 3 :].tolist()


def market(files: int = 3) -> dict[str, str]:
    from drainmark.jobs.testing.market import generate_market

    return {file.name: file.text for file in generate_market(seed=3, files=files, records_per_file=40, symbols=4)}


@pytest.mark.recovery
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_killed_at_any_step_it_recovers_to_the_golden_run() -> None:
    (proof,) = dm.testing.assert_exactly_once("vwap", market(), actions=("kill",), groupings=(2,))
    assert len(proof.failures) > 10
