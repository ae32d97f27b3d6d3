"""Inputs and tables in Azure's emulator: commit, change, rewind, SIGKILL, take-over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import rows, run_once

from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Workplace, open_application
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine
from drainmark.resources.storage.object_store import ObjectStore

pytestmark = pytest.mark.spark

REGION = "shop/lines"
APPLICATION = """
import drainmark as dm
from drainmark import F


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="{container}/in", pattern="*.txt", format="text", recursive=True))
def lines(scanned):
    return scanned


@dm.functor(vectorised=True)
def words(lines):
    return dm.select(lines, F.explode(F.split("value", " ")).alias("word"))


counts = dm.aggregate(words, keys=["word"], values={{"count": dm.count()}})
dm.sink(words, dm.DeltaAppend("words"))
dm.sink(counts, dm.DeltaUpsert("counts", keys=["word"]))
dm.sink(words, dm.FileSink("{container}/exports", format="json"), name="exports")
"""


class Lake:
    """A container with inputs below `in/`, tables below `tables/`, and a home whose tables are there."""

    def __init__(self, container: str, root: Path, engine: SparkEngine) -> None:
        self.container, self.root, self.engine = container, root, engine
        self.store = ObjectStore()
        self.app = root / "shop.py"
        self.app.write_text(APPLICATION.format(container=container))
        self.texts: dict[int, str] = {}
        self.place = self.opened()

    def opened(self) -> Workplace:
        """Return the home as a new process sees it."""
        tables = {"tables_url": f"{self.container}/tables"}
        place = Workplace(Settings(home=self.root / "home", project_root=self.root, **tables))
        place.use_engine(self.engine)
        return place

    def put(self, *numbers: int) -> None:
        for number in numbers:
            self.texts[number] = " ".join(f"w{number * step % 7}" for step in range(1, 9))
            self.store.put(self.container, f"in/deep/{number}.txt", self.texts[number].encode())

    def run(self, max_group: int = 2) -> None:
        run_once(self.place, open_application(str(self.app), params={}, inputs=[]), max_group=max_group)

    def require(self) -> None:
        """Compare tables and exported files with plain Python."""
        expected = Counter(word for text in self.texts.values() for word in text.split())
        assert Counter(row["word"] for row in rows(self.place, REGION, "words")) == expected
        assert {row["word"]: row["count"] for row in rows(self.place, REGION, "counts")} == dict(expected)
        names = [name for name in self.store.names(self.container, "exports/") if name != "_drainmark"]
        files = [self.store.get(self.container, f"exports/{name}") for name in names]
        assert Counter(json.loads(line)["word"] for file in files for line in file.splitlines()) == expected


@pytest.fixture
def lake(azure: str, tmp_path: Path, engine: SparkEngine) -> Iterator[Lake]:
    found = Lake(azure, tmp_path, engine)
    yield found
    found.place.registry.close()


@pytest.mark.seed("D3", "H29")
def test_objects_of_azure_are_committed_and_taken_back(lake: Lake) -> None:
    lake.put(0, 1, 2, 3)
    lake.run()
    lake.require()
    with owning(region_owner(lake.place, REGION)) as owner:
        assert owner.rewind(2, 10_000) == 2
    for number in (2, 3):
        del lake.texts[number]
    lake.require()
    lake.put(2, 3, 4)
    lake.run()
    lake.require()


@pytest.mark.seed("H10", "H3")
@pytest.mark.recovery
@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", ["checkpoint.after_commit", "publish.after_commit", "checkpoint.before_commit"])
def test_a_killed_run_on_azure_is_taken_over(lake: Lake, point: str) -> None:
    lake.put(0, 1, 2, 3)
    environment = {
        **os.environ,
        "DRAINMARK_TABLES_URL": lake.place.settings.tables_url,
        "DRAINMARK_FAILPOINTS": f"{point}:kill:2",
    }
    command = [sys.executable, "-m", "drainmark.orchestration.cli.main", "run", str(lake.app)]
    more = ["--max-group", "2", "--home", str(lake.place.home)]
    killed = subprocess.run([*command, *more], env=environment, cwd=lake.root, check=False, timeout=500)
    assert killed.returncode == -signal.SIGKILL
    lake.put(4)
    lake.run()
    lake.require()
