"""A program that runs the applications of `tests/ordinary` on one Spark: `python ordinary_runs.py MODE FOLDER NAMES…`.

MODE is `resident`, `sc`, or a master URL; in `resident large` every group is a large one. It runs in another process
than the tests, because a process has one kind of Spark.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from drainmark.jobs.graph.application import Application, load_application
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.graph.own_modules import own_modules_importable
from drainmark.jobs.graph.params import Params
from drainmark.jobs.operators.sinks.sink import Sink
from drainmark.orchestration.testing.crash.killing import ChildServer
from drainmark.orchestration.testing.running import run_app
from drainmark.orchestration.workplace.spark_choice import make_engine
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine

FOLDER = Path(__file__).with_name("ordinary")
APPLICATIONS = tuple(sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("ordinary_")))
RESIDENT, CONNECT = "resident", "sc"
LARGE = " large"
LINES = "lines"
CONF = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}


def loaded(name: str) -> tuple[Application, ModuleType]:
    """Return an application as `drainmark graph` loads it, and its module with the files and the expected rows."""
    application = load_application(str(FOLDER / f"{name}.py"))
    return application, sys.modules[f"drainmark_application_{name}"]


def merged(names: Sequence[str]) -> Application:
    """Return one application made of several that read the same files; it runs all in one group: see `renamed`."""
    found = [(name, loaded(name)[0]) for name in names]
    operators = [renamed(name, operator) for name, application in found for operator in application.operators]
    params = [application.params_class for _, application in found if application.params_class is not Params]
    by_name = {operator.name: operator for operator in operators}
    return Application(name="ordinary", operators=tuple(by_name.values()), params_class=(params or [Params])[0])


def renamed(application: str, operator: Operator) -> Operator:
    """Return an operator with its application's name in its name, table and inputs; all share the source `lines`."""

    def name_of(name: str) -> str:
        return name if name == LINES else f"{application}_{name}"

    inputs = tuple(replace(port, upstream=name_of(port.upstream)) for port in operator.inputs)
    table = {"table": f"{application}_{operator.table}"} if isinstance(operator, Sink) else {}
    return replace(operator, name=name_of(operator.name), inputs=inputs, **table)


def expected_of(name: str) -> dict[str, list[str]]:
    """Return the rows that plain Python computes, by the table names of `merged`."""
    expected = loaded(name)[1].expected
    with own_modules_importable(FOLDER / f"{name}.py"):
        return {f"{name}_{table}": _sorted(rows) for table, rows in expected().items()}


def run(names: Sequence[str], home: Path, engine: SparkEngine, **settings: Any) -> dict[str, Any]:
    """Run applications on their files; return the rows of each table, and the number of groups."""
    result = run_app(merged(names), loaded(names[0])[1].FILES, home=home, engine=engine, settings=settings)
    tables = {table: _sorted(result.sink(table)) for name in names for table in expected_of(name)}
    result.close()
    return {"tables": tables, "groups": len(result.groups)}


def _sorted(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


@contextlib.contextmanager
def engine_of(mode: str, folder: Path) -> Iterator[SparkEngine]:
    """Yield the engine of a run in that mode."""
    with contextlib.ExitStack() as stack:
        if mode == CONNECT:
            server = ChildServer(folder / "server")
            stack.callback(server.stop)
            server.start()
            mode = server.master
        settings = {"spark": RESIDENT} if mode == RESIDENT else {"spark_master": mode}
        place = Settings(home=folder / "home", project_root=folder, spark_conf=CONF, **settings)
        engine = make_engine(place, is_service=mode == RESIDENT)  # as a service: the server ends with this process
        stack.callback(engine.stop)
        yield engine


def main(mode: str, folder: Path, sets: Sequence[str]) -> None:
    """Print a line of JSON for each set of applications; commas separate the names in a set."""
    settings = {"small_group_bytes": 0} if mode.endswith(LARGE) else {}
    with engine_of(mode.removesuffix(LARGE), folder) as engine:
        for number, names in enumerate(sets):
            found = run(names.split(","), folder / f"run-{number}" / "home", engine, **settings)
            print(json.dumps({"names": names.split(","), **found}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
