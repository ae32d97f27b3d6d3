"""Undeclared columns: their inference from a sample, and the file that stores them from then on."""

from __future__ import annotations

import gzip
import io
import json
import queue
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness import settle

from drainmark import DirectoryScan
from drainmark.jobs.errors import DeclarationError, StoreUnavailable, UsageError
from drainmark.jobs.errors.loading import SchemaUnknown
from drainmark.jobs.formats.inference import columns_of
from drainmark.jobs.formats.json_records import others_of
from drainmark.jobs.protocol.records.triggers import NewTrigger
from drainmark.orchestration.dagster_jobs.broken_applications import broken_definitions
from drainmark.orchestration.workplace import schema_files
from drainmark.orchestration.workplace.code_digest import code_digest
from drainmark.orchestration.workplace.schema_files import keep_schemas
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.settings import Settings

HEADER = {"header": "true"}


def inferred(*files: bytes, suffix: str = ".data", **scan: Any) -> dict[str, str] | None:
    expected = DirectoryScan(path="in", **scan).expects(None)
    found = columns_of(((io.BytesIO(file), suffix) for file in files), expected)
    return {name: kind.simpleString() for name, kind in found} if found is not None else None


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "-20", ""], "bigint"),
        (["1", "007"], "string"),
        (["1", "2.5", "-.5", "1e3"], "double"),
        (["9223372036854775808"], "string"),
        (["true", "FALSE"], "boolean"),
        (["true", "1"], "string"),
        (["2024-02-29", ""], "date"),
        (["2024-02-30"], "string"),
        (["2024-W01-1"], "string"),
        (["1\u0662"], "string"),
        (["1\u20282"], "string"),
        (["2024-02-29", "2024-02-29T10:11:12.5Z"], "timestamp"),
        (["12:34"], "string"),
        (["20240229"], "bigint"),
        (["", ""], "string"),
        (["NaN"], "string"),
        ([" 1"], "string"),
    ],
)
def test_texts_of_csv_are_what_each_of_them_is_written_as(values: list[str], kind: str) -> None:
    content = "k,v\n" + "".join(f"x,{value}\n" for value in values)
    assert inferred(content.encode(), format="csv", options=HEADER) == {"k": "string", "v": kind}


def test_a_sample_is_of_several_files_with_one_header_and_one_without_records_says_nothing() -> None:
    files = (b"a;b\n", b"\xef\xbb\xbf\n# c\nn ; t\n1;1\n", b"t;n\nx;y\n", b"n;t\n2;1.5\n3")
    options = {**HEADER, "sep": ";", "comment": "#"}
    assert inferred(*files, format="csv", options=options) == {"n": "bigint", "t": "double"}
    assert inferred(b"a,b\n", format="csv", options=HEADER) is None
    assert inferred(gzip.compress(b"a\n1\n"), suffix=".gz", format="csv", options=HEADER) == {"a": "bigint"}
    assert inferred(b"a\n1\n", suffix=".lz4", format="csv", options=HEADER) is None
    assert inferred(b"a,A\n1,2\n", format="csv", options=HEADER) is None
    assert inferred(b"a,source_file\n1,2\n", format="csv", options=HEADER) is None


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([1], pa.uint8()), "smallint"),
        (pa.array([1], pa.uint64()), "decimal(20,0)"),
        (pa.array([1], pa.time64("us")), None),
        (pa.array([1], pa.timestamp("ns")), None),
        (pa.array([1], pa.decimal256(50, 2)), None),
    ],
)
def test_parquet_says_types_as_spark_reads_them(values: pa.Array, kind: str | None) -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"k": ["a"], "v": values}), file)
    found = inferred(file.getvalue(), format="parquet")
    assert found == ({"k": "string", "v": kind} if kind else None)


def test_old_timestamps_of_parquet_are_timestamps() -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"at": pa.array([1], pa.timestamp("us"))}), file, use_deprecated_int96_timestamps=True)
    assert inferred(file.getvalue(), format="parquet") == {"at": "timestamp"}


def test_names_with_line_ends_say_nothing() -> None:
    assert inferred(b'{"no\\u2028te": 1}\n', format="json") is None
    assert inferred(b'{"p\\n--q": 1}\n', format="json") is None


def test_json_says_its_types_and_what_is_of_several_is_a_text() -> None:
    lines = [
        {"i": 1, "d": 1, "s": "2024-01-01", "o": {"x": 1}, "l": [1], "m": 1, "n": None, "e": {}, "b": True},
        {"d": 1.5, "o": {"y": [{"z": None}]}, "l": [2.5], "m": "x", "big": 2**63, "late": "x"},
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode() + b"no json\n[1]\n"
    assert inferred(content, format="json") == {
        "i": "bigint",
        "d": "double",
        "s": "string",
        "o": "struct<x:bigint,y:array<struct<z:string>>>",
        "l": "array<double>",
        "m": "string",
        "n": "string",
        "e": "string",
        "b": "boolean",
        "big": "string",
        "late": "string",
    }


def test_what_is_rescued_of_json_is_its_text() -> None:
    records = [b'{"k":1}', b' { "x" : 1.10 , "k" : 1,"y\\u00e9\\"" : [ "a" , {"b":null} ]} ', b'{"x":"k"}', b"{}"]
    assert others_of(records, {"k"}) == [None, '{"x":1.10,"yé\\"":[ "a" , {"b":null} ]}', '{"x":"k"}', None]
    assert others_of([b'{"x" : null , "k":1}', b'{"x":null,"y":"null"}'], {"k"}) == [None, '{"y":"null"}']
    for record, found in zip(records, others_of(records, {"k"}), strict=True):
        assert json.loads(found or "{}") == {name: value for name, value in json.loads(record).items() if name != "k"}


# --- the file that stores them --------------------------------------------------------------------------------------

APPLICATION = """
    import drainmark as dm

    @dm.consistent(trigger="operator-driven")
    @dm.source(dm.DirectoryScan(path="inbox", {scan}))
    def read(scanned):
        return scanned

    dm.sink({stream}, dm.DeltaAppend("copied"))
"""


class Project:
    """A folder with an application whose source declares no schema."""

    def __init__(
        self, root: Path, scan: str = 'format="csv", options={"header": "true"}', stream: str = "read"
    ) -> None:
        self.inbox, self.file = root / "inbox", root / "app.py"
        self.inbox.mkdir()
        self.file.write_text(textwrap.dedent(APPLICATION).replace("{scan}", scan).replace("{stream}", stream))
        self.settings = Settings(home=root / "home", project_root=root)
        self.schema = root / "schemas" / "app.read.ddl"

    def put(self, name: str, content: bytes) -> None:
        (self.inbox / name).write_bytes(content)
        settle(self.inbox)

    def opened(self) -> Opened:
        return open_application(str(self.file), settings=self.settings)

    @property
    def code(self) -> str:
        return code_digest(str(self.file), self.settings.project_root)


def schema_of(opened: Opened, output: str = "") -> str:
    found: str = opened.application.operator("read").scan.schema_of(output)  # type: ignore[attr-defined]
    return " ".join(found.split())


def test_the_first_files_decide_once_and_the_file_holds_from_then_on(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.put("b.csv", b"k,n o\nx,1\n")
    opened = project.opened()
    assert schema_of(opened) == "k string, `n o` bigint"
    assert not project.schema.exists(), "who looks changes nothing"
    before = project.code
    keep_schemas(opened.schemas)
    keep_schemas(opened.schemas)
    assert "inferred from inbox/b.csv and" in project.schema.read_text()
    assert list(project.schema.parent.iterdir()) == [project.schema]
    assert project.code != before, "a schema is code: a halt is lifted by another one"
    project.put("a.csv", b"z\n1.5\n")
    assert schema_of(project.opened()) == "k string, `n o` bigint"
    project.schema.write_text("-- mine\nk string,\n  -- why\n`n o` double\n")
    assert schema_of(project.opened()) == "k string, `n o` double"
    assert schema_of(open_application(str(project.file))) == "k string, `n o` double", "also where no project is"


def test_without_a_first_file_it_says_what_to_do_and_counts_no_attempt(tmp_path: Path) -> None:
    project = Project(tmp_path)
    with pytest.raises(SchemaUnknown, match="there is no file yet") as caught:
        project.opened()
    assert isinstance(caught.value, UsageError)
    assert str(project.schema) in (caught.value.remedy or "")
    project.put("a.csv", b"k,n\n")
    with pytest.raises(SchemaUnknown, match="no file there has records"):
        project.opened()
    with pytest.raises(DeclarationError, match="needs a schema"):
        open_application(str(project.file))


def test_a_region_with_states_does_not_infer_its_columns_again(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.put("a.csv", b"k,n\nx,1\n")
    opened = project.opened()
    asked = []

    def has_states(region: str) -> bool:
        asked.append(region)
        return True

    with pytest.raises(UsageError, match="is gone, and app/read has states") as caught:
        keep_schemas(opened.schemas, has_states)
    assert 'schema="k string, n bigint"' in (caught.value.remedy or "")
    assert asked == ["app/read"]
    assert not project.schema.exists()


def test_where_it_cannot_be_written_it_says_what_to_declare(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.put("a.csv", b"k,n\nx,1\n")
    project.schema.parent.symlink_to("/proc")  # even root cannot write there
    opened = project.opened()
    with pytest.raises(UsageError) as caught:
        keep_schemas(opened.schemas)
    assert 'schema="k string, n bigint"' in (caught.value.remedy or "")
    assert str(project.schema) in caught.value.message


def test_two_that_infer_at_once_end_with_one_file(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.put("b.csv", b"k,n\nx,1\n")
    one = project.opened()
    project.put("a.csv", b"k,n\nx,1.5\n")
    other = project.opened()
    keep_schemas(one.schemas)
    with pytest.raises(UsageError, match="written a moment ago"):
        keep_schemas(other.schemas)
    assert schema_of(project.opened()) == "k string, n bigint"


def test_outputs_have_a_file_each_and_parquet_says_its_types(tmp_path: Path) -> None:
    project = Project(
        tmp_path, 'format="parquet", outputs={"a": "*.a", "b": "*.b"}, schema={"b": "x int"}', 'read["a"]'
    )
    file = io.BytesIO()
    pq.write_table(pa.table({"k": ["x"], "n": pa.array([1], pa.int32())}), file)
    project.put("1.b", b"not looked at")
    project.put("2.a", file.getvalue())
    opened = project.opened()
    keep_schemas(opened.schemas)
    assert (schema_of(opened, "a"), schema_of(opened, "b")) == ("k string, n int", "x int")
    assert [path.name for path in project.schema.parent.iterdir()] == ["app.read.a.ddl"]


def test_outputs_whose_names_are_alike_have_files_of_their_own(tmp_path: Path) -> None:
    scan = 'format="json", outputs={"a/b": "1.*", "a_b": "2.*", "a.b": "3.*", "a%2Fb": "4.*"}'
    project = Project(tmp_path, scan, 'read["a_b"]')
    for place, name in enumerate("wxyz", start=1):
        project.put(f"{place}.json", f'{{"{name}": 1}}\n'.encode())
    keep_schemas(project.opened().schemas)
    found = {path.name: path.read_text().splitlines()[-1] for path in project.schema.parent.iterdir()}
    assert found == {
        "app.read.a%2Fb.ddl": "w bigint",
        "app.read.a_b.ddl": "x bigint",
        "app.read.a%2Eb.ddl": "y bigint",
        "app.read.a%252Fb.ddl": "z bigint",
    }


def test_a_damaged_file_of_columns_is_named(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.schema.parent.mkdir()
    project.schema.write_text("-- nothing\n")
    with pytest.raises(UsageError, match=r"app\.read\.ddl has no columns"):
        project.opened()


def test_in_dagster_it_waits_for_the_first_file(tmp_path: Path) -> None:
    project = Project(tmp_path)
    place = Workplace(project.settings)
    with pytest.raises(SchemaUnknown) as caught:
        project.opened()
    (sensor,) = broken_definitions(place, str(project.file), caught.value).sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(instance=instance)
        assert "there is no file yet" in str(sensor(context))
        project.put("a.csv", b"k,n\nx,1\n")
        assert "can be loaded now" in str(sensor(context))


@contextmanager
def web_server() -> Iterator[tuple[str, queue.Queue[tuple[str, str]]]]:
    """Run a substitute for Dagster's web server; yield its address, and the path and body of each request."""
    heard: queue.Queue[tuple[str, str]] = queue.Queue()

    class Listener(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.put((self.path, self.rfile.read(int(self.headers["Content-Length"])).decode()))
            self.send_error(503)

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Listener)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", heard
    finally:
        server.shutdown()
        server.server_close()


def test_a_bucket_that_did_not_answer_when_dagster_loaded_the_code_is_asked_again_and_the_code_reloaded(
    tmp_path: Path,
) -> None:
    """`tests/recovery/test_reloaded_location.py` shows the same with Dagster's own web server."""
    project = Project(tmp_path)
    project.put("a.csv", b"k,n\nx,1\n")
    for error in (StoreUnavailable("no answer"), UsageError("no such column")):
        with web_server() as (address, heard), dg.DagsterInstance.ephemeral() as instance:
            place = Workplace(project.settings.model_copy(update={"dagster_url": f"{address}/dagster"}))
            (sensor,) = broken_definitions(place, str(project.file), error).sensors or ()
            assert isinstance(sensor, dg.SensorDefinition)
            if isinstance(error, UsageError):
                with pytest.raises(UsageError, match="no such column"):
                    sensor(dg.build_sensor_context(instance=instance))
                continue
            assert "is asked to reload" in str(sensor(dg.build_sensor_context(instance=instance)))
            path, body = heard.get(timeout=30)
            assert (path, "reloadRepositoryLocation" in body) == ("/dagster/graphql", True)


@pytest.mark.usefixtures("s3_credentials")
def test_while_the_bucket_does_not_answer_a_tick_says_so_and_the_next_one_asks_again(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.file.write_text(project.file.read_text().replace('"inbox"', '"s3://nobody/in"'))
    settings = project.settings.model_copy(update={"s3_endpoint_url": "http://127.0.0.1:9"})
    with pytest.raises(StoreUnavailable) as caught:
        open_application(str(project.file), settings=settings)
    (sensor,) = broken_definitions(Workplace(settings), str(project.file), caught.value).sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    with dg.DagsterInstance.ephemeral() as instance:
        assert "cannot list s3://nobody/in" in str(sensor(dg.build_sensor_context(instance=instance)))


@pytest.mark.usefixtures("s3_credentials")
def test_a_bucket_that_lists_its_first_files_and_does_not_give_them_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path)
    project.file.write_text(project.file.read_text().replace('"inbox"', '"s3://nobody/in"'))
    settings = project.settings.model_copy(update={"s3_endpoint_url": "http://127.0.0.1:9"})
    first = NewTrigger(
        uri="s3://nobody/in/a.csv", identity={"size": 8, "etag": "1"}, identity_key="1", size_bytes=8, output=""
    )
    monkeypatch.setattr(schema_files, "_first_files", lambda *args: [first])
    with pytest.raises(StoreUnavailable, match="columns of read, cannot be read"):
        open_application(str(project.file), settings=settings)
