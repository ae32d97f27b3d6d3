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
from pyspark.sql.types import LongType, StructField, StructType
from reads import read_bytes
from waiting import SOON

from drainmark import DirectoryScan
from drainmark.jobs.errors import DeclarationError, StoreUnavailable, UsageError
from drainmark.jobs.errors.environment import SchemaUnknown
from drainmark.jobs.formats.inference import ColumnsUnclear, Inferred, columns_of
from drainmark.jobs.frames.tags import arrow_schema
from drainmark.jobs.protocol.records.triggers import NewTrigger
from drainmark.orchestration.dagster_jobs.broken_applications import broken_definitions
from drainmark.orchestration.workplace import schema_files
from drainmark.orchestration.workplace.application_identity import code_digest
from drainmark.orchestration.workplace.schema_files import SchemaFile, keep_schemas
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.settings import Settings

HEADER = {"header": "true"}


def inferred(*files: bytes, suffix: str = ".data", **scan: Any) -> dict[str, str] | None:
    expected = DirectoryScan(path="in", **scan).expects(None)
    try:
        found = columns_of(((io.BytesIO(file), suffix) for file in files), expected)
    except ColumnsUnclear:
        return None
    return {name: kind.simpleString() for name, kind in found.columns}


def of_csv(content: bytes, **options: str) -> Inferred:
    scan = DirectoryScan(path="in", format="csv", options={**HEADER, **options})
    return columns_of([(io.BytesIO(content), ".data")], scan.expects(None))


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
        (["1e400"], "string"),
        (["1e-400"], "string"),
    ],
)
def test_texts_of_csv_are_what_each_of_them_is_written_as(values: list[str], kind: str) -> None:
    content = "k,v\n" + "".join(f"x,{value}\n" for value in values)
    assert inferred(content.encode(), format="csv", options=HEADER) == {"k": "string", "v": kind}


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (["1", "n/a", "2", "-"], "line 3 has 'n/a'"),
        (["n/a", "1.5"], "line 2 has 'n/a'"),
        (["true", "1"], "line 3 has '1'"),
        (["1", "007"], "line 3 has '007'"),
        (["1,5", "2,5"], "line 2 has '1,5' is no double: write the decimal point as '.'"),
        (["2024-01-01", "31.01.2024"], "line 3 has '31.01.2024'"),
        (["tea", "cake"], None),
        (["1", "2.5"], None),
    ],
)
def test_the_column_that_is_a_text_and_why_are_told(values: list[str], why: str | None) -> None:
    found = of_csv("".join(f"{line}\n" for line in ("amount;k", *(f"{value};x" for value in values))).encode(), sep=";")
    assert found.texts == ({"amount": why} if why else {})


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b"a,b,A", "several columns 'a'"),
        (b"a,,b", "column 2 has no name"),
        ("a,Gr\u00f6\u00dfe,c".encode("latin-1"), "encoding"),
        ("a,b,c".encode("utf-16"), 'UTF-16 by its byte order mark: options={"encoding": "UTF-16"}'),
        (b"PK\x03\x04\x14", "the first file there is a zip archive"),
    ],
)
def test_a_header_that_is_odd_is_refused_by_what_is_odd(header: bytes, why: str) -> None:
    with pytest.raises(ColumnsUnclear, match=why):
        of_csv(header + b"\n1,2,3\n")


def test_headers_of_another_encoding_with_a_mark_or_with_2000_columns_are_read() -> None:
    many = ",".join(f"c{place}" for place in range(2000))
    latin = of_csv("Größe\n1\n".encode("latin-1"), encoding="ISO-8859-1")
    marked = of_csv(b"\xef\xbb\xbfa\n1\n")
    assert [name for name, _ in (*latin.columns, *marked.columns)] == ["Größe", "a"]
    assert len(of_csv(f"{many}\n{','.join('1' * 2000)}\n".encode()).columns) == 2000


def test_a_sample_is_of_several_files_with_one_header_and_one_without_records_says_nothing() -> None:
    files = (b"a;b\n", b"\xef\xbb\xbf\n# c\nn ; t\n1;1\n", b"t;n\nx;y\n", b"n;t\n2;1.5\n3")
    options = {**HEADER, "sep": ";", "comment": "#"}
    assert inferred(*files, format="csv", options=options) == {"n": "bigint", "t": "double"}
    assert inferred(b"a,b\n", format="csv", options=HEADER) is None
    assert inferred(gzip.compress(b"a\n1\n"), suffix=".gz", format="csv", options=HEADER) == {"a": "bigint"}
    assert inferred(b"a\n1\n", suffix=".lz4", format="csv", options=HEADER) is None
    with_end, in_lines = {**HEADER, "lineSep": ";"}, {**HEADER, "multiLine": "true", "encoding": "UTF-16LE"}
    assert inferred(b"a,b;1,2.5;3,4;", format="csv", options=with_end) == {"a": "bigint", "b": "double"}
    written = '\ufeffa,b\n1,"x\ny"\n'.encode("utf-16-le")
    assert inferred(written, format="csv", options=in_lines) == {"a": "bigint", "b": "string"}
    assert inferred(b"a,A\n1,2\n", format="csv", options=HEADER) is None
    assert inferred(b"a,source_file\n1,2\n", format="csv", options=HEADER) is None
    assert inferred(b"PAR1", b"a\n1\n", format="csv", options=HEADER) == {"a": "bigint"}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([None], pa.null()), "string"),
        (pa.array([[("k", None)]], pa.map_(pa.string(), pa.null())), "map<string,string>"),
        (pa.array([1], pa.uint8()), "smallint"),
        (pa.array([1], pa.uint64()), "decimal(20,0)"),
        (pa.array([1], pa.time64("us")), None),
        (pa.array([1], pa.timestamp("ns")), "timestamp_ntz"),
        (pa.array([1], pa.timestamp("ns", "UTC")), "timestamp"),
        (pa.array([1.5], pa.float16()), "float"),
        (pa.array([1], pa.decimal256(50, 2)), None),
    ],
)
def test_parquet_says_the_types_of_its_values(values: pa.Array, kind: str | None) -> None:
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


@pytest.mark.parametrize(
    ("content", "options"),
    [
        ('{"Größe":1}\n{"t":"x"}\n'.encode("latin-1"), {"encoding": "ISO-8859-1"}),
        ('\ufeff{"Größe":1}\n{"t":"x"}\n'.encode("utf-16-le"), {"encoding": "UTF-16LE"}),
        ('{"Größe":1}\x1e{"t":"x"}'.encode(), {"lineSep": "\x1e"}),
    ],
)
def test_records_of_json_are_found_as_the_reader_finds_them(content: bytes, options: dict[str, str]) -> None:
    assert inferred(content, format="json", options=options) == {"Größe": "bigint", "t": "string"}


def test_json_that_is_nested_deeper_than_parquet_can_be_is_a_text_there(tmp_path: Path) -> None:
    content = f'{{"k":{"[" * 400}{"]" * 400}}}\n'.encode()
    scan = DirectoryScan(path="in", format="json")
    ((name, kind),) = columns_of([(io.BytesIO(content), ".data")], scan.expects(None)).columns
    file = io.BytesIO()
    pq.write_table(arrow_schema(StructType([StructField(name, kind)])).empty_table(), file)
    assert pq.read_table(file).column_names == ["k"]
    (row,) = read_bytes(tmp_path, content, "json", ((name, kind),)).rows
    assert repr(row["k"]).count("[") == 400


def test_what_is_rescued_of_json_is_its_text(tmp_path: Path) -> None:
    lines = [
        '{"k":1}', ' { "x" : 1.10 , "k" : 1,"y\\u00e9\\"" : [ "a" , {"b":null} ]} ', '{"x":"k","k":null}',
        '{"x" : null , "k":1}', '{"x":null,"y":"null","k":1}',
    ]  # fmt: skip
    content = "".join(f"{line}\n" for line in lines).encode()
    found = read_bytes(tmp_path, content, "json", (("k", LongType()),), on_schema="rescue").rows
    rescued = [row["_rescued"] for row in found]
    assert rescued == [None, '{"x":1.10,"yé\\"":[ "a" , {"b":null} ]}', '{"x":"k"}', None, '{"y":"null"}']
    for line, text in zip(lines, rescued, strict=True):
        others = {name: value for name, value in json.loads(line).items() if name != "k" and value is not None}
        assert json.loads(text or "{}") == others


def test_the_notice_names_the_first_columns_that_are_texts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts = {f"c{place}": "line 2 has 'n/a'" for place in range(7)}
    held = SchemaFile(
        path=tmp_path / "schemas" / "a.ddl", stream="a", region="a/a", ddl="k string", inferred_from="f", texts=texts
    )
    keep_schemas([held])
    assert "; c4 is text: line 2 has 'n/a'; and 2 more" in caplog.text


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
            path, body = heard.get(timeout=SOON)
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


@pytest.mark.parametrize(
    ("content", "options"),
    [
        ('{"a":1}\n{"a":2,"b":"x"}\n'.encode("utf-16"), {"encoding": "UTF-16"}),
        (b'[{"a":1}, {"a":2,\n "b":"x"}]', {"multiLine": "true"}),
        (b'{"a":1}|{"a":2,"b":"x"}|', {"lineSep": "|"}),
    ],
)
def test_records_of_json_are_found_as_they_are_read(content: bytes, options: dict[str, str]) -> None:
    scan = DirectoryScan(path="inbox", format="json", options=options)
    found = columns_of([(io.BytesIO(content), ".data")], scan.expects(None))
    assert [(name, kind.simpleString()) for name, kind in found.columns] == [("a", "bigint"), ("b", "string")]


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_the_notice_of_another_encoding_says_the_option_that_reads_it(kind: str) -> None:
    content = ("id,n\n1,x\n" if kind == "csv" else '{"id":1}\n').encode("utf-16")
    options = {"header": "true"} if kind == "csv" else {}
    scan = DirectoryScan(path="inbox", format=kind, options=options)
    with pytest.raises(ColumnsUnclear, match='"encoding": "UTF-16"'):
        columns_of([(io.BytesIO(content), ".data")], scan.expects(None))
    scan = DirectoryScan(path="inbox", format=kind, options={**options, "encoding": "UTF-16"})
    assert columns_of([(io.BytesIO(content), ".data")], scan.expects(None)).columns
