"""Where else a person lies: buckets, PostgreSQL, numbers, pushed rows, columns of other names (ER1, ER3, ER5)."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from by_hand import HandFed
from deltalake import DeltaTable, Schema
from hand_runs import NoSpark, engine, without_spark
from harness import done, settle
from integration.test_erase import found_in

import drainmark as dm
from drainmark.jobs.errors import UnknownName, UsageError
from drainmark.jobs.protocol.persons import Person
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.state import keyed_state
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.verbs.removals import erase
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.delta.adopted.constraints import REGION_PROPERTY
from drainmark.resources.erasure import search
from drainmark.resources.erasure.conditions import condition_of
from drainmark.resources.erasure.search import is_in_bytes
from drainmark.resources.settings import Settings
from drainmark.resources.storage.bucket_folder import BucketFolder
from drainmark.resources.storage.object_store import ObjectStore

__all__ = ["engine", "without_spark"]

PERSON = "canary-17@example.org"
WHERE = f"customer = '{PERSON}'"
SOURCE = """
import drainmark as dm

@dm.consistent(trigger="operator-driven", rewind_horizon=50)
@dm.source(dm.DirectoryScan(path="inbox", format="csv", schema="item string, customer string, id bigint",
                            pattern="*.csv", settle=0))
def rows(scanned):
    return scanned

"""
FILES = (f"tea,ann,17\ncup,{PERSON},18\n", f"cup,bob,171\npot,{PERSON},18\n", "tea,ann,17\njug,eve,-17\n")


@pytest.fixture
def root(engine: NoSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "inbox").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ran(root: Path, sinks: str, settings: str = "", source: str = SOURCE, files: Sequence[str] = FILES) -> None:
    """Run an application over the files, in groups of one."""
    (root / "app.py").write_text(source + sinks)
    home = "" if settings.startswith("home") else 'home = "home"\n'
    (root / "drainmark.toml").write_text(f'applications = ["app.py"]\n{home}{settings}')
    for number, text in enumerate(files):
        (root / "inbox" / f"{number}.csv").write_text(text)
    settle(root / "inbox")
    done("run", "app.py", "--max-group", "1")


def erased(root: Path, where: str = WHERE, *more: str) -> dict[str, Any]:
    done("erase", "--where", where, "--certificate", str(root / f"{uuid4().hex}.json"), *more)
    newest = max(root.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    found: dict[str, Any] = json.loads(newest.read_text())
    return found


def values(table: str, column: str = "customer", at: int | None = None) -> list[Any]:
    return sorted(dm.read("app", table, at=at)[column].to_pylist())


NONE_HAS = [
    (("custmer = 17",), "'custmer'", "did you mean 'customer'? known: customer, id, item"),
    (("zip = 17",), "'zip'", "known: customer, id, item"),
    (("customer = ann AND emial = x",), "'emial'", "known: customer, id, item"),
    (("customer = ann", "--also", "customer=custommer"), "'custommer'", "did you mean 'customer'?"),
]


@pytest.mark.seed("ER5")
@pytest.mark.parametrize(("asked", "said", "remedy"), NONE_HAS)
def test_a_column_that_no_table_has_is_refused_before_anything_is_written(
    root: Path, capsys: pytest.CaptureFixture[str], asked: Sequence[str], said: str, remedy: str
) -> None:
    ran(root, 'dm.sink(rows, dm.DeltaAppend("all_rows"))\n')
    before = written(root)
    for yes in ((), ("--yes",)):
        error = refused(capsys, "erase", "--where", *asked, *yes)
        assert error["id"] == "UNKNOWN_NAME"
        assert said in error["message"]
        assert remedy in error["remedy"]
        assert written(root) == before


def refused(capsys: pytest.CaptureFixture[str], *command: str) -> dict[str, Any]:
    capsys.readouterr()
    assert invoke([*command, "--json"]) == 2
    error: dict[str, Any] = json.loads(capsys.readouterr().err)["error"]
    return error


def written(root: Path) -> dict[Path, bytes]:
    """Return all files of the tables, with their logs, and what lies beside the checkpoints."""
    folders = (root / "home" / name for name in ("checkpoints", "lake", "state", "buffers"))
    return {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}


READING = f"from __future__ import annotations\n{SOURCE}"


def only(column: str) -> str:
    """Return a sink of one column, and the function before it."""
    return f"""
@dm.functor
def of_{column}(rows) -> "{column} string":
    return [{{"{column}": str(row["{column}"])}} for row in rows]
dm.sink(of_{column}, dm.DeltaAppend("with_{column}"))
"""


@pytest.mark.seed("ER5")
def test_columns_of_different_tables_do_not_make_a_person(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran(root, only("customer") + only("id"), source=READING)
    error = refused(capsys, "erase", "--where", "customer = ann AND id = 17", "--yes")
    assert error["id"] == "UNKNOWN_NAME"
    assert "customer, id" in error["message"]
    assert values("with_customer") == sorted(["ann", "ann", "bob", PERSON, PERSON, "eve"])


@pytest.mark.seed("ER5")
def test_a_value_that_occurs_nowhere_is_found_nowhere(root: Path) -> None:
    ran(root, 'dm.sink(rows, dm.DeltaAppend("all_rows"))\n')
    before = values("all_rows")
    certificate = erased(root, "customer = nobody")
    assert values("all_rows") == before
    assert [table["rows"] for region in certificate["regions"] for table in region["tables"]] == [0, 0]


@pytest.mark.seed("ER1")
def test_of_several_conditions_none_is_passed_over(root: Path) -> None:
    """The last one alone names more rows than all of them."""
    ran(root, 'dm.sink(rows, dm.DeltaAppend("all_rows"))\n')
    erased(root, "id = 18", "--where", "item = cup")
    assert values("all_rows", "item") == ["cup", "jug", "pot", "tea", "tea"]


@pytest.mark.seed("ER5")
def test_a_column_that_only_a_table_has_which_left_the_code_is_known(root: Path) -> None:
    ran(root, only("customer"), source=READING, files=FILES[:1])
    (root / "app.py").write_text(READING + only("item"))
    (root / "inbox" / "1.csv").write_text(FILES[1])
    settle(root / "inbox")
    done("run", "app.py")
    assert erased(root)["found_afterwards"] == []
    assert found_in(root / "home") == {}


@pytest.mark.seed("ER5")
def test_bad_records_are_erased_by_their_own_columns(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No table has the column of which the source would have made it: `raw` has the record as it was."""
    ran(root, only("item"), source=READING, files=(f"tea,{PERSON},x\n" * 2,))
    assert "raw" in refused(capsys, "erase", "--where", WHERE)["remedy"]
    erased(root, f"raw = '{PERSON}'")
    assert found_in(root / "home") == {}


@pytest.mark.seed("ER1")
def test_a_bad_record_has_quotes_of_a_value_as_csv_writes_them(root: Path) -> None:
    ran(root, 'dm.sink(rows, dm.DeltaAppend("all_rows"))\n', files=('tea,"Ann ""Bo"" Lee",x\ncup,bob,1\n',))
    erased(root, "customer = 'Ann \"Bo\" Lee'")
    assert dm.read("app", "app_quarantine").num_rows == 0


@pytest.mark.seed("ER5")
@pytest.mark.parametrize("yes", [(), ("--yes",)], ids=["plan", "yes"])
def test_a_home_without_tables_says_so(root: Path, capsys: pytest.CaptureFixture[str], yes: Sequence[str]) -> None:
    (root / "drainmark.toml").write_text('home = "home"\n')
    assert "--home" in refused(capsys, "erase", "--where", WHERE, *yes)["remedy"], "there is no home at all"
    (root / "home").mkdir()
    assert invoke(["erase", "--where", WHERE, *yes]) == (0 if yes else 2)
    said = capsys.readouterr().err
    assert f"{root / 'home'} has none yet, since no region has run" in said
    assert "known: none" not in said


@pytest.mark.seed("ER1")
def test_a_number_is_the_number_of_its_column_and_nothing_else(root: Path) -> None:
    ran(root, 'dm.sink(rows, dm.DeltaAppend("all_rows"))\ndm.sink(rows, dm.DeltaUpsert("newest", keys=["item"]))\n')
    certificate = erased(root, "id = 17")
    assert values("all_rows", "id") == [-17, 18, 18, 171]
    assert values("all_rows", "id", 1) == [18]
    assert values("newest", "id") == [-17, 18, 171]
    assert certificate["found_afterwards"] == []
    assert any("too short" in said for said in certificate["not_searched"])
    told = {each["uri"][-5:]: each["state"] for each in certificate["inputs"]}
    assert told == {"0.csv": "", "2.csv": "", "1.csv": "may hold rows"}, "17 is in a text there"
    erased(root, f"id IN (18, 171) AND customer = '{PERSON}'")
    assert values("all_rows", "id") == [-17, 171]


@pytest.mark.seed("ER1")
def test_a_bucket_holds_nothing_of_the_person(
    root: Path, s3_server: str, s3_credentials: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = ObjectStore(s3_server)
    store.connection.client.create_bucket(Bucket=(name := f"b{uuid4().hex[:10]}"))
    sinks = """
dm.sink(rows, dm.DeltaAppend("all_rows"))
dm.sink(rows, dm.DeltaUpsert("newest", keys=["item"]))
dm.sink(rows, dm.FileSink("s3://BUCKET/out", format="json"))
totals = dm.aggregate(rows, keys=["customer"], values={"n": dm.count()}, name="totals")
dm.sink(totals, dm.DeltaUpsert("customer_totals", keys=["customer"]))
""".replace("BUCKET", name)
    ran(root, sinks, f'tables_url = "s3://{name}/lake"\ns3_endpoint_url = "{s3_server}"\n')
    assert len(found_in(copied(store, name, tmp_path_factory.mktemp("before")))) > 5
    certificate = erased(root)
    assert found_in(copied(store, name, tmp_path_factory.mktemp("after"))) == {}
    assert found_in(root / "home") == {}
    assert certificate["found_afterwards"] == []
    assert values("all_rows") == ["ann", "ann", "bob", "eve"]
    assert values("out") == ["ann", "ann", "bob", "eve"]
    done("reset", "app", "--to", "2")
    assert values("newest") == ["ann", "bob"]


def copied(store: ObjectStore, bucket: str, target: Path) -> Path:
    folder = BucketFolder(store, f"s3://{bucket}", "")
    for entry in folder.everything(""):
        path = target / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(folder.source(entry.path).read())
    return target


@pytest.mark.seed("ER1")
def test_rows_leave_tables_of_postgresql(root: Path, postgres_url: str) -> None:
    from sqlalchemy import create_engine, text

    sinks = """
dm.sink(rows, dm.DatabaseAppend("crm", "copied"))
dm.sink(rows, dm.DatabaseUpsert("crm", "newest", keys=["item"]))
"""
    ran(root, sinks, f'[databases]\ncrm = "{postgres_url}"\n')
    certificate = erased(root)
    engine = create_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        for table, rows in (("copied", ["ann", "ann", "bob", "eve"]), ("newest", ["ann", "bob", "eve"])):
            found = connection.execute(text(f"SELECT customer FROM {table} ORDER BY 1")).scalars()  # noqa: S608
            assert [*found] == rows
        kept = connection.execute(text("SELECT most_common_vals::text, histogram_bounds::text FROM pg_stats")).all()
    engine.dispose()
    assert PERSON not in str(kept)
    assert certificate["found_afterwards"] == []


@pytest.mark.seed("ER5")
def test_a_table_that_is_left_out_is_left_whatever_its_name_is_called(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran(root, 'dm.sink(rows, dm.DeltaAppend("all_rows"))\ndm.sink(rows, dm.DeltaAppend("kept"))\n')
    assert invoke(["erase", "--where", WHERE, "--except", "kpt", "--yes"]) != 0
    assert "kept" in capsys.readouterr().err
    assert "lake/kept" in erased(root, WHERE, "--except", "kept")["not_searched"]
    assert PERSON in values("kept")
    assert PERSON not in values("all_rows")


@pytest.mark.seed("ER5")
def test_a_rewind_brings_rows_back_to_a_table_that_is_left_out(root: Path) -> None:
    """A partition of the person alone is named by the retraction that took it out."""
    ran(root, 'dm.sink(rows, dm.DeltaAppend("all_rows"))\n'
        'dm.sink(rows, dm.DeltaAppend("kept", partition_by=["customer"]))\n')  # fmt: skip
    before = values("kept", at=2)
    done("retract", "app", "1.csv", "--reason", "wrong")
    erased(root, WHERE, "--except", "kept")
    assert values("kept", at=2) == before
    done("reset", "app", "--to", "2", "--accept-loss")
    assert values("kept") == before
    assert PERSON not in values("all_rows")


def zstd(content: bytes) -> bytes:
    return bytes(pa.compress(content, codec="zstd", asbytes=True))


@pytest.mark.seed("ER5")
@pytest.mark.parametrize("packed", [gzip.compress, lzma.compress, bz2.compress, zstd, b"PAR1".__add__])
def test_a_damaged_input_does_not_hinder_an_erasure(root: Path, packed: Callable[[bytes], bytes]) -> None:
    ran(root, 'dm.sink(rows, dm.DeltaAppend("all_rows"))\n')
    (root / "inbox" / "2.csv").write_bytes(packed(random.Random(7).randbytes(4000))[:2000])
    found = {Path(each["uri"]).name: each["state"] for each in erased(root)["inputs"]}
    assert found == {"0.csv": "", "1.csv": "", "2.csv": "not searched"}
    assert PERSON not in values("all_rows")


KEYED = """
dm.sink(rows, dm.DeltaAppend("all_rows"))
dm.sink(rows, dm.DeltaUpsert("newest", keys=["item"]))
dm.sink(rows, dm.DatabaseAppend("crm", "copied"))
dm.sink(rows, dm.DatabaseUpsert("crm", "copied_newest", keys=["item"]))
"""


def of_keyed(root: Path, ids: range) -> dict[tuple[str, int], list[str]]:
    tables = ("all_rows", "newest", "copied", "copied_newest")
    return {(name, at): sorted(map(str, dm.read("app", name, at=at).to_pylist())) for name in tables for at in ids}


@pytest.mark.seed("ER2", "RC1")
def test_what_a_row_of_the_person_hid_does_not_come_back_with_its_erasure(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second file, whose cup the person's later one hides, is retracted: its cup must not be shown again."""
    found = []
    held = (f"cup,{PERSON},2\ntea,ann,1\n", "cup,bob,4\npot,eve,3\n", f"cup,{PERSON},5\n", f"pot,{PERSON},5\n")
    for folder, files in (("held", held), ("never", [cleaned(text) for text in held])):
        (place := root / folder / "inbox").mkdir(parents=True)
        monkeypatch.chdir(place.parent)
        ran(place.parent, KEYED, f'[databases]\ncrm = "sqlite:///{place.parent}/crm.db"\n', files=files)
        done("retract", "app", "1.csv")
        if files is held:
            certificate = erased(place.parent)
            assert certificate["found_afterwards"] == []
            assert len({each["uri"] for each in certificate["inputs"]}) == len(certificate["inputs"]) == 3
            assert found_in(place.parent / "home") == {}
        seen = [of_keyed(place.parent, range(6))]
        done("retract", "app", "0.csv")
        seen.append(of_keyed(place.parent, range(7)))
        done("reset", "app", "--to", "3")
        seen.append(of_keyed(place.parent, range(4)))
        done("doctor", "--quick")
        found.append(seen)
    assert found[0] == found[1]


def cleaned(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if PERSON not in line)


@pytest.mark.seed("ER1", "ER2")
def test_rows_leave_sinks_that_left_the_code(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = f'[databases]\ncrm = "sqlite:///{root}/crm.db"\n'
    ran(root, KEYED, database)
    (root / "app.py").write_text(SOURCE + 'dm.sink(rows, dm.DeltaAppend("all_rows"))\n')
    (root / "inbox" / "9.csv").write_text("jar,bob,9\n")
    settle(root / "inbox")
    done("run", "app.py")
    assert erased(root)["found_afterwards"] == []
    assert found_in(root, PERSON).keys() == {"inbox/0.csv", "inbox/1.csv"}
    with closing(sqlite3.connect(root / "crm.db")) as connection:
        rows = connection.execute("SELECT customer FROM copied_newest ORDER BY 1").fetchall()
        assert rows == [("ann",), ("bob",), ("eve",)]
        assert connection.execute("SELECT count(*) FROM copied").fetchall() == [(4,)]
    capsys.readouterr()
    done("doctor", "--quick")
    assert "another tool" not in capsys.readouterr().out
    done("reset", "app", "--to", "1")
    assert values("all_rows") == ["ann"]


@pytest.mark.seed("ER5")
@pytest.mark.parametrize(
    "all_rows", ['dm.sink(rows, dm.DeltaAppend("all_rows"))\n', ""], ids=["one has it", "none has it"]
)
def test_a_column_of_another_name_is_found_and_erased_by_that_name(
    root: Path, capsys: pytest.CaptureFixture[str], all_rows: str
) -> None:
    sinks = """
newest = dm.aggregate(rows, keys=["item"], values={"who": dm.last("customer")}, name="newest")
dm.sink(newest, dm.DeltaUpsert("who_was_last", keys=["item"]))
"""
    ran(root, f"{sinks}{all_rows}")
    if all_rows:
        first = erased(root)
        assert {each["path"].partition("/_staged")[0] for each in first["found_afterwards"]} >= {"state/app/newest"}
        assert "state/app/newest" in first["without_columns"]
    else:
        assert "who" in refused(capsys, "erase", "--where", WHERE, "--yes")["remedy"]
    second = erased(root, WHERE, "--also", "customer=who")
    assert second["found_afterwards"] == []
    assert found_in(root / "home") == {}
    assert values("who_was_last", "who") == ["ann", "bob", "eve"]


@pytest.mark.seed("ER3")
def test_pushed_rows_leave_a_home_in_which_nothing_has_run(root: Path) -> None:
    (root / "app.py").write_text(
        "import drainmark as dm\n"
        '@dm.consistent(trigger="operator-driven")\n'
        '@dm.source(dm.ReplayableStart(schema="customer string, n bigint", rows=2, seconds=0))\n'
        "def rows(scanned):\n    return scanned\n"
        'dm.sink(rows, dm.DeltaAppend("all_rows"))\n'
    )
    (root / "drainmark.toml").write_text('applications = ["app.py"]\nhome = "home"\n')
    for name in ("ann", PERSON):
        (root / "rows.jsonl").write_text(f'{{"customer": "{name}", "n": 1}}\n{{"customer": "bob", "n": 2}}\n')
        done("push", "app.py", str(root / "rows.jsonl"))
    assert found_in(root / "home")
    certificate = erased(root)
    assert [(each["table"], each["rows"]) for each in certificate["outside"]] == [("buffers/app/rows/rows", 1)]
    assert found_in(root / "home") == {}
    kept = [json.loads(line) for path in sorted(root.glob("home/buffers/**/*.jsonl")) for line in path.open()]
    assert [row["customer"] for row in kept] == ["ann", "bob", "bob"]


NESTED = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": "who", "type": {"type": "struct", "fields": [
                {"name": "phone", "type": "string", "nullable": True, "metadata": {}},
            ]}, "nullable": True, "metadata": {}},
            {"name": "_sequence_id", "type": "long", "nullable": True, "metadata": {}},
        ],
    }
)  # fmt: skip


class Adopting(HandFed):
    """A region with a table of others that has values inside of values."""

    @property
    def tables(self) -> tuple[RegionTable, ...]:
        theirs = RegionTable(
            name="lake/theirs", role=TableRole.APPEND, operator="theirs", schema_json=NESTED, adopted=True
        )
        return (*super().tables, theirs)


@pytest.mark.seed("ER5")
def test_a_column_may_be_inside_of_the_values_of_an_adopted_table(tmp_path: Path) -> None:
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    region, person = "by_hand/files", Person.parse("phone = 555-17")
    DeltaTable.create(
        place.home / "lake" / "theirs", Schema.from_json(NESTED), configuration={REGION_PROPERTY: region},
        raise_if_key_not_exists=False,
    )  # fmt: skip
    with Adopting(place, tmp_path / "inbox", region=region).owning():
        pass
    with pytest.raises(UnknownName) as refused:
        erase.plan(place, person, [region])
    assert "--except lake/theirs" in (refused.value.remedy or "")
    told = erase.plan(place, person, [region], passed=["lake/theirs"])
    assert any("'phone'" in each for each in told["not_searched"])
    place.registry.close()


PUSHED = """import drainmark as dm

@dm.consistent(trigger="operator-driven")
@dm.source(dm.ReplayableStart(schema="customer string, id bigint", rows=2, seconds=0))
def pushed(scanned):
    return scanned

dm.sink(pushed, dm.DeltaAppend("of_pushed"))
"""


@pytest.mark.seed("ER4")
@pytest.mark.parametrize(
    ("sinks", "where"), [(only("item"), WHERE), (only("customer") + only("id"), f"{WHERE} AND id = 18")],
    ids=["one column", "columns of different tables"],
)  # fmt: skip
def test_an_erasure_that_removed_the_last_rows_with_its_columns_is_repeated(root: Path, sinks: str, where: str) -> None:
    """Only pushed rows have them; who killed the first attempt, or lost its certificate, types it again."""
    ran(root, sinks, source=READING, files=("tea,ann,1\n",))
    (root / "pushes.py").write_text(PUSHED)
    (root / "drainmark.toml").write_text('applications = ["app.py", "pushes.py"]\nhome = "home"\n')
    (root / "rows.jsonl").write_text(f'{{"customer": "{PERSON}", "id": 18}}\n' * 2)
    done("push", "pushes.py", str(root / "rows.jsonl"))
    first = erased(root, where)
    assert [each["rows"] for each in first["outside"]] == [2]
    second = erased(root, where)
    assert second["person"] == first["person"]
    assert "'customer'" in second["not_searched"][0] or "customer, id" in second["not_searched"][0]


@pytest.mark.seed("ER3")
@pytest.mark.parametrize(
    ("kind", "pushed", "asked"),
    [("double", "5", "5.0"), ("double", "1.50", "1.5"), ("bigint", "17", "017"), ("double", "1e2", "100"),
     ("timestamp", '"2026-01-01T10:00:00Z"', "'2026-01-01 10:00:00'"), ("boolean", "true", "TRUE")],
)  # fmt: skip
def test_a_pushed_value_is_found_however_it_is_written(root: Path, kind: str, pushed: str, asked: str) -> None:
    (root / "app.py").write_text(
        "import drainmark as dm\n"
        '@dm.consistent(trigger="operator-driven")\n'
        f'@dm.source(dm.ReplayableStart(schema="who {kind}, n bigint", rows=2, seconds=0))\n'
        "def rows(scanned):\n    return scanned\n"
        'dm.sink(rows, dm.DeltaAppend("all_rows"))\n'
    )
    (root / "drainmark.toml").write_text('applications = ["app.py"]\nhome = "home"\n')
    (root / "rows.jsonl").write_text(f'{{"who": {pushed}, "n": 1}}\n{{"who": null, "n": 2}}\n')
    done("push", "app.py", str(root / "rows.jsonl"))
    erased(root, f"who = {asked}")
    kept = [json.loads(line) for path in root.glob("home/buffers/**/*.jsonl") for line in path.open()]
    assert [row["n"] for row in kept] == [2]


@pytest.mark.seed("ER1")
def test_only_what_drainmark_wrote_is_changed(root: Path) -> None:
    """The home is the folder of the project; a table lies below the folder of another one, beside files of others."""
    (root / "notes.txt").write_text(PERSON)
    (root / "kept.html").write_text(PERSON)
    ran(root, 'dm.sink(rows, dm.DeltaAppend("sales"))\n', 'home = "."\n')
    other = root / "lake" / "sales" / "eu"
    other.mkdir()
    held = next(path for path in root.glob("lake/sales/_staged/*/*.parquet") if found_in(path.parent))
    (other / "of_others.parquet").write_bytes(held.read_bytes())
    before = {path: path.read_bytes() for path in (*root.glob("inbox/*.csv"), root / "notes.txt", root / "kept.html")}
    certificate = erased(root)
    assert {path: path.read_bytes() for path in before} == before
    assert (other / "of_others.parquet").exists()
    assert not held.exists()
    told = {each["path"] for each in certificate["found_afterwards"]}
    assert told >= {"notes.txt", "kept.html", "inbox/0.csv", "lake/sales/eu/of_others.parquet"}
    assert values("sales") == ["ann", "ann", "bob", "eve"]


@pytest.mark.seed("ER5")
def test_a_longer_word_in_a_database_of_dagster_is_another_s(root: Path) -> None:
    folder = root / "home" / "dagster"
    folder.mkdir(parents=True)
    with closing(sqlite3.connect(folder / "runs.db")) as connection:
        connection.execute("CREATE TABLE runs (job TEXT PRIMARY KEY, said TEXT)")
        connection.execute("INSERT INTO runs VALUES ('smithery__rows', 'bad record of smith, of smithery')")
        connection.commit()
    (folder / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    (root / "drainmark.toml").write_text('home = "home"\n')
    erased(root, "customer = smith")
    with closing(sqlite3.connect(folder / "runs.db")) as connection:
        assert connection.execute("SELECT * FROM runs").fetchall() == [
            ("smithery__rows", "bad record of [erased], of smithery")
        ]


@pytest.mark.seed("ER2")
@pytest.mark.parametrize(
    ("kind", "written", "asked"),
    [("bigint", "17", "17"), ("string", "17", "17"), ("double", "1.5", "1.50"), ("double", "-0.0", "0"),
     ("double", "nan", "NaN"), ("string", "O'Neil", "'O''Neil'")],
)  # fmt: skip
def test_a_value_is_compared_in_the_type_of_the_column(kind: str, written: str, asked: str) -> None:
    types = {"bigint": pa.int64(), "string": pa.string(), "double": pa.float64()}
    found = pa.array([written, None, "18"]).cast(types[kind]) if kind != "string" else pa.array([written, None, "18"])
    rows = pa.table({"who": found, "n": [1, 2, 3]})
    where = condition_of(Person.parse(f"who = {asked} AND n IN (1, 2, 3)"), rows.schema)
    assert where is not None
    assert rows.filter(where)["n"].to_pylist() == [1]
    assert rows.filter(~where)["n"].to_pylist() == [2, 3], "a row without a value stays"


@pytest.mark.seed("ER2")
@pytest.mark.parametrize(
    ("kind", "values", "asked"),
    [(pa.int32(), [17, 18], "17, 3000000000"), (pa.decimal128(6, 2), [Decimal("17.00"), Decimal("18.00")],
     "17, 17.001, 123456789")],
)  # fmt: skip
def test_a_value_that_no_row_can_have_does_not_hide_the_others(
    kind: pa.DataType, values: list[Any], asked: str
) -> None:
    rows = pa.table({"who": pa.array(values, kind)})
    where = condition_of(Person.parse(f"who IN ({asked})"), rows.schema)
    assert where is not None
    assert rows.filter(where)["who"].to_pylist() == values[:1]


@pytest.mark.parametrize(
    "text", ["", "a", "a =", "a = 1 OR b = 2", "a > 1", "a IN ()", "a IN (1", "a = ''", "a = 1 AND"]
)
def test_a_condition_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Person.parse(text)


@pytest.mark.seed("ER1")
@pytest.mark.parametrize("merge", ["on-write", "on-read"])
def test_rows_of_before_a_column_came_leave_by_its_other_name(
    root: Path, monkeypatch: pytest.MonkeyPatch, merge: str
) -> None:
    monkeypatch.setattr(keyed_state, "_IMAGE_MINIMUM_ROWS", 1)
    sinks = f"""
dm.sink(rows, dm.DeltaAppend("all_rows", on_schema_change="evolve"))
dm.sink(rows, dm.DeltaUpsert("newest", keys=["item"], on_schema_change="evolve", merge="{merge}"))
"""
    first = SOURCE.replace("customer string", "buyer string")
    ran(root, sinks, source=first, files=(f"cup,{PERSON},1\npot,bob,2\n", f"mug,{PERSON},3\n"))
    second = first.replace("id bigint", "id bigint, customer string")
    (root / "app.py").write_text(second + sinks)
    (root / "inbox" / "2.csv").write_text(f"cup,eve,4,ann\nmug,eve,5,{PERSON}\n")
    settle(root / "inbox")
    done("run", "app.py")
    assert erased(root, WHERE, "--also", "customer=buyer")["found_afterwards"] == []
    assert found_in(root / "home") == {}
    assert sorted(dm.read("app", "all_rows")["id"].to_pylist()) == [2, 4]
    assert {row["item"]: row["id"] for row in dm.read("app", "newest").to_pylist()} == {"cup": 4, "pot": 2}


@pytest.mark.seed("ER5")
@pytest.mark.parametrize(
    ("text", "is_found"),
    [("smith", True), ("smithery", False), ("blacksmith", False), (" smith ", True), ("smit", False)],
)
@pytest.mark.parametrize("place", range(7))
def test_a_word_is_read_whole_where_a_large_file_is_cut(text: str, is_found: bool, place: int) -> None:
    for before in (0, search._CHUNK - search._OVERLAP, search._CHUNK):
        content = b"." * max(0, before - place) + text.encode() + b"." * search._CHUNK
        assert is_in_bytes(io.BytesIO(content), Person.parse("name = smith")) == is_found, before
