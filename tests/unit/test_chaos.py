"""The chaos of the demo: strikes spread over the protocol and repeat with their seed; the comparison can fail."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from drainmark.jobs.errors import DrainmarkError
from drainmark.jobs.failpoints import FailPoint
from drainmark.orchestration.cli.demo.chaos import Standing, Strike, _where, strikes
from drainmark.orchestration.cli.demo.logs import Counted
from drainmark.orchestration.cli.demo.project import DemoProject, compare


def planned(seed: int, count: int) -> list[Strike]:
    return list(itertools.islice(strikes(random.Random(seed)), count))


def test_a_seed_repeats_its_strikes_and_another_has_others() -> None:
    assert planned(7, 20) == planned(7, 20)
    assert planned(7, 20) != planned(8, 20)


def test_ten_strikes_spread_over_start_processing_commit_and_fail_points() -> None:
    for seed in range(30):
        found = planned(seed, 10)
        kinds = Counter("point" if strike.fail_point else strike.moment for strike in found)
        assert kinds == {"start": 2, "claim": 4, "commit": 2, "point": 2}
        for strike in found:
            if strike.fail_point:
                point, action, passing = strike.fail_point.split(":")
                assert FailPoint(point)
                assert (action, passing.isdigit()) == ("kill", True)


@pytest.mark.parametrize(
    ("strike", "after", "where"),
    [
        (Strike("start", 1.0), {}, "starting, before the claim"),
        (Strike("claim", 1.0), {"epoch": 2, "step": "DRAINING"}, "in DRAINING"),
        (Strike("commit", 0.1), {"epoch": 2, "unpublished": (3,)}, "between commit and publish"),
        (Strike("publish.after_commit", 2), {"epoch": 2}, "at publish.after_commit"),
    ],
)
def test_where_a_run_was_is_told_from_what_it_left(strike: Strike, after: dict[str, Any], where: str) -> None:
    facts = {"epoch": 1, "states": 2, "committed_id": 2, "unpublished": (), "step": "PROCESSING"}
    assert _where(strike, Standing(**facts), Standing(**{**facts, **after})) == where


class Told(DemoProject):
    """A project with given sinks."""

    sinks: dict[str, Any]

    def read(self, *arguments: str) -> Any:
        return self.sinks[arguments[1]]


def test_the_comparison_passes_what_is_equal_and_finds_one_failure_too_many(tmp_path: Path) -> None:
    class Project(Told):
        sinks = {  # noqa: RUF012
            "log_watch": [{"trigger": "a"}, {"trigger": "b"}],
            "log_watch_failures": [{"remote_host": "h"}] * 2,
            "log_watch_hosts": [{"remote_host": "h", "failures": 2}],
            "log_watch_alerts": [],
        }

    project = Project(root=tmp_path, console=Console(quiet=True))
    compare(project, Counted(failures=Counter(h=2), alerts={}), 2)
    for failures, files, blamed in ((3, 2, "log_watch_failures, log_watch_hosts"), (2, 3, "the number of states")):
        with pytest.raises(DrainmarkError, match=blamed):
            compare(project, Counted(failures=Counter(h=failures), alerts={}), files)
    Project.sinks["log_watch"].append({"trigger": "a"})
    with pytest.raises(DrainmarkError, match="consistent states"):
        compare(project, Counted(failures=Counter(h=2), alerts={}), 2)
