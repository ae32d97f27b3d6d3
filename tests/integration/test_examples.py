"""Every public name has an example in its docstring and is on one page of the reference, and the example runs.

The examples add operators to the application of docs/shop.py. All of them are compiled. On a page that needs nothing
outside the project, they form one application, which runs on two files.
"""

from __future__ import annotations

import base64
import gzip
import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from integration.documents import ROOT

import drainmark as dm
from drainmark.jobs.regions.plan import compile_application
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.testing.running import run_app
from drainmark.resources.spark.session import SparkEngine

GENERATE = runpy.run_path(str(ROOT / "docs" / "generate.py"))
PAGES = {stem: names.split() for stem, (_, _, names) in GENERATE["_PAGES"].items()}
EXAMPLES: dict[str, str] = {name: GENERATE["example_of"](name) for name in dir(dm)}
SHOP = (ROOT / "docs" / "shop.py").read_text()

SCRIPTS = ("application", "build_application", "counting", "load_application")
"""Names with examples that are programs, and need no Spark."""

BESIDE = ("read", "changes", "tables", "view", "spark_session", "push", "DrainmarkError", "testing")
"""Names with examples that are programs, and use an application after its run."""

UNSUPPORTED = ("gate", "switch", "tcp_sink", "tcp_source", "udp_sink", "udp_source")
RUN_TOGETHER = ("aggregations", "handlers", "operators", "sinks")
LEFT_OUT = ("DatabaseAppend", "DatabaseUpsert", "Control", "Autonomous", *UNSUPPORTED)
"""Names of these pages with examples that need a database or a second source, or name a substitute: only compiled."""

FILES: dict[str, str] = {
    "orders/1.json": json.dumps(
        {
            "id": 1,
            "customer": "ann.fr",
            "item": "tea",
            "amount": 120.5,
            "at": "2026-01-01T10:00:00Z",
            "note": "gift=yes,wrap=red",
            "attachment": base64.b64encode(gzip.compress(b"x")).decode(),
        }
    ),
    "payments/1.json": json.dumps({"id": 1, "paid": 120.5, "paid_at": "2026-01-01T10:30:00Z"}),
    "orders/2.json": json.dumps({"id": 2, "customer": "bob.de", "item": "tea", "at": "2026-01-01T12:00:00Z"}),
}


def declared() -> list[str]:
    return [name for name in dir(dm) if name not in (*SCRIPTS, *BESIDE)]


def test_every_public_name_has_an_example_and_a_page() -> None:
    assert [name for name, example in EXAMPLES.items() if not example.strip()] == []
    assert sorted(name for names in PAGES.values() for name in names) == dir(dm)


@pytest.mark.parametrize("name", declared())
def test_an_example_compiles(name: str, tmp_path: Path) -> None:
    assert name.lower() in EXAMPLES[name].lower()
    compile_application(dm.load_application(shop(tmp_path, name)))


def shop(folder: Path, *names: str) -> str:
    """Write the application with the examples of these names."""
    (folder / "shop.py").write_text("\n\n".join([SHOP, *(EXAMPLES[name] for name in names)]))
    return str(folder / "shop.py")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_program_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shop(tmp_path)
    run(EXAMPLES[name])


def run(program: str, **known: Any) -> None:
    exec(compile(program, "example", "exec"), {"dm": dm, **known})  # noqa: S102


@pytest.mark.spark
def test_the_programs_beside_an_application_run(
    engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drainmark.toml").touch()
    for name, text in FILES.items():
        (tmp_path / "inbox" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "inbox" / name).write_text(text)
    assert engine.session is not None  # the command line's own engine finds this session
    assert invoke(["run", shop(tmp_path, "ReplayableStart")]) == 0
    capsys.readouterr()
    said = {}
    for name in BESIDE:
        run(EXAMPLES[name], spark=engine.session)
        said[name] = capsys.readouterr().out
    assert said["read"] == "2 1\n"
    assert said["changes"] == "['insert']\n"
    assert "ann.fr" in said["view"]
    assert said["push"] == "1\n"
    assert "did you mean 'order_rows'?" in said["DrainmarkError"]
    assert "'amount': 9.5" in said["testing"]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("page", RUN_TOGETHER)
def test_the_examples_of_a_page_run_as_one_application(
    page: str, engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    statement = tmp_path / "sql" / "shop" / "large.sql"
    statement.parent.mkdir(parents=True)
    statement.write_text("select * from {orders} where amount > {least}")
    names = [name for name in PAGES[page] if name not in LEFT_OUT]
    tables = {"customer_names": [{"customer": "ann.fr", "name": "Ann"}]}
    result = run_app(shop(tmp_path, *names), FILES, tables=tables, engine=engine)
    assert [row["id"] for row in result.sink("order_rows")] == [1, 2]
