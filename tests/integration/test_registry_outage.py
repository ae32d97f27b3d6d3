"""`run` while its PostgreSQL registry goes away and comes back (R2)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from harness import opened, rows, settle
from postgres import PostgresServer, server

from drainmark.orchestration.runs.interruption import Interruption
from drainmark.orchestration.runs.run_loop import RunOptions, Watch, run_application
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine

__all__ = ["server"]

AWAY_SECONDS = 1.0


@pytest.mark.seed("R2", "N4")
def test_a_run_waits_for_its_registry_and_counts_no_attempt(
    tmp_path: Path, engine: SparkEngine, server: PostgresServer
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.txt").write_text("to be\n")
    settle(tmp_path / "in")
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path, registry_url=server.new_database()))
    place.use_engine(engine)
    application = opened("word_count", tmp_path / "in")
    back: list[threading.Timer] = []
    notes: list[str] = []

    def go_away(report: Any, pending: int) -> None:
        if not back:
            server.stop()
            back.append(threading.Timer(AWAY_SECONDS, server.start))

    def note(text: str) -> None:
        notes.append(text)
        if len(notes) == 1:  # a registry that nobody asked was not away
            back[0].start()

    with Interruption() as interruption:
        (loop,) = run_application(
            place, application, [application.region()], options=RunOptions(max_group=1),
            watch=Watch(on_group=go_away, on_note=note),
            run_id="run", interruption=interruption,
        )  # fmt: skip
    back[0].join()
    assert "does not answer" in notes[0]
    assert loop.summary()["triggers"] in (2, 3), "the group under way may be committed, and settled by the next claim"
    history = place.history("word_count/lines")
    assert len(history.states) == 3
    assert history.attempts == 0
    found = rows(place, "word_count/lines", "word_counts")
    assert {row["word"]: row["count"] for row in found} == {"to": 3, "be": 3}
    place.registry.close()
