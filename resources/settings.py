"""The settings and their sources: flags, then `DRAINMARK_*` or the files of `DRAINMARK_*_FILE`, then `drainmark.toml`.

The entry point calls `load_settings` once and passes the result down; no other code takes settings from the
environment or looks for `drainmark.toml`. Options of a single region are arguments of `@consistent(...)`, not settings.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, PrivateAttr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from drainmark.jobs.errors import HomeNotFound, UsageError
from drainmark.jobs.protocol.records.addresses import address_of
from drainmark.jobs.tasks.places import make_folder, sync_folder
from drainmark.resources.variables import named_by_files, read_variable

SETTINGS_FILE = "drainmark.toml"
"""Name of the file that marks a project's root."""

SQLITE = "sqlite:///"
"""Prefix of the URL of a registry that is a file."""

_MIB = 1024 * 1024
_FORMS = {
    "tuple_type": 'a list of texts: ["one", "two"]',
    "dict_type": 'a table of names and values: {name = "value"}',
    "string_type": 'a text: "value"',
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
}
"""The form of a value that drainmark.toml should have, by the name that pydantic gives to the error."""

_CHOICES = ("auto", "in-process", "resident")
_MASTERS = (
    *("local[*]", "local[4]", "spark://host:7077", "yarn with HADOOP_CONF_DIR set"),
    *("k8s://https://api.example.com:6443", "or sc://host:15002, a Connect server"),
)
_MASTER = re.compile(
    r"local(\[(\*|0*[1-9][0-9]*)(\s*,\s*[0-9]+)?\])?|local-cluster\[\s*[0-9]+\s*,\s*[0-9]+\s*,\s*[0-9]+\s*\]"
    r"|yarn|spark://[^\s/,]+:[0-9]+(,[^\s/,]+:[0-9]+)*|sc://[^\s/]+\S*|k8s://(https?://)?[^\s/:]+\S*"
)
"""The addresses that Spark knows, and how they are told to users."""

_PREFIX = "DRAINMARK_"
_PROJECT = f"{_PREFIX}PROJECT"
_NOT_PLAIN = re.compile(r"%[0-9A-Fa-f]{2}|\?")


class Settings(BaseSettings):
    """All settings, frozen; unknown keys are refused. `load_settings` makes them; tests pass home and root."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True
    )

    home: Path
    """Absolute folder of all durable data. Default: `.drainmark` beside `drainmark.toml`, so that the daemon, the
    code server and the command line use the same home from any working directory."""

    project_root: Path
    """Absolute folder of the nearest `drainmark.toml`, else the working directory. Paths in settings start here."""

    registry_url: str = Field(default="", repr=False)
    """SQLAlchemy URL of the registry. Default: `sqlite:///<home>/registry.db`, which needs no server. Not shown in
    the repr: it may hold a password."""

    applications: tuple[str, ...] = ()
    """Applications that Dagster's code location loads: names in `jobs/apps/`, dotted modules, Python files. Default:
    none; it then loads the applications that have run in this home."""

    spark: str = "auto"
    """The Spark to use: `in-process`; `resident`, a local Spark Connect server that outlives runs; or an address, which
    is `local[…]`, `spark://…`, `yarn`, `k8s://…` or `sc://…`, a Connect server. Default `auto`: `spark_master` if it is
    not local; else `resident` for runs that Dagster's sensors and schedules start, so that each costs only a
    connection, and `in-process` for the command line."""

    spark_master: str = "local[*]"
    """Address of the in-process or resident Spark; that of a cluster or Connect server is used as it is. Default: this
    machine, all cores. This works without a cluster."""

    spark_idle_seconds: float = Field(default=1800.0, gt=0)
    """Seconds without a client after which the resident Spark stops; the next client starts it again. Default 1800: its
    memory is free over night, and it survives a lunch break."""

    linger_seconds: float = Field(default=60.0, ge=0)
    """Seconds that a run started by a sensor waits for more files when nothing is pending, so that it processes them at
    once; 0: it does not wait. `@consistent(linger=...)` sets it for a region. Default 60."""

    linger_limit_seconds: float = Field(default=900.0, ge=0, le=3600)
    """Seconds after its start at which a run stops lingering, even if files keep coming. Default 900: the pages of
    runs stay short, and new code is loaded."""

    spark_conf: dict[str, str] = Field(default_factory=dict)
    """Additional Spark settings, by full name. Default: none; Drainmark itself sets those that the protocol needs."""

    max_group_triggers: int = Field(default=2000, ge=1)
    """Largest number of triggers in a group. Default 2000: a larger group is no faster, and loses more if it fails."""

    max_group_bytes: int = Field(default=256 * _MIB, ge=1)
    """Largest number of input bytes in a group; one trigger is always taken. Default 256 MiB: local Spark can hold
    that much materialised with ease. On a large cluster, raise it: docs/how-to/cluster.md."""

    small_group_bytes: int = Field(default=8 * _MIB, ge=0)
    """A group with at most this many input bytes is processed on one core; its outputs come back by Arrow, and Python
    writes them. Default 8 MiB: up to there this is faster. Lower it if rows of small files take long: 0 spreads every
    group over all cores. In a region with `dm.apply_changes` twice as many bytes are small."""

    range_bytes: int = Field(default=128 * _MIB, ge=1)
    """Several tasks read a larger file of text, JSON lines or CSV that is not compressed, or of Parquet, each a range
    of this many bytes. Default 128 MiB, as Spark's `maxPartitionBytes`: a few seconds of work for a core. The memory of
    a task does not depend on it."""

    lease_seconds: float = Field(default=15.0, gt=0)
    """Seconds without heartbeat after which a lease is free. Default 15: five missed heartbeats."""

    heartbeat_seconds: float = Field(default=3.0, gt=0)
    """Seconds between heartbeats, less than `lease_seconds`. Default 3: a process that stalls for up to 12 s keeps its
    lease."""

    sensor_interval_seconds: int = Field(default=5, ge=1)
    """Seconds between two ticks of a sensor. Default 5: new files start within seconds, idle ticks are cheap."""

    sensor_time_box_seconds: float = Field(default=20.0, gt=0)
    """Seconds a tick may scan before it saves its cursor. Default 20: well below Dagster's limit of 60 s for a tick."""

    scan_whole_files: int = Field(default=10_000, ge=1)
    """Number of files of a folder or prefix up to which (inclusive) every scan compares all. Default 10000: a tenth of
    a second, or ten requests. With more, a scan compares the files that can have changed, and the rest in rounds."""

    scan_round_seconds: float = Field(default=1800.0, ge=0)
    """Seconds from the start of a round to the start of the next. A round compares all of a large folder or prefix.
    Default 1800: a round uses a twentieth of the time, so that a million files are compared within an hour."""

    slice_bytes: int = Field(default=32 * _MIB, ge=1)
    """Bytes of the first slice of a periodic region. Later slices follow the measured rate, so that with a backlog a
    state takes about one period. Default 32 MiB: one or two seconds on a laptop."""

    analysis_timeout_seconds: float = Field(default=300.0, gt=0)
    """Time limit in seconds for each of these steps before the claim of a run: Spark's start and the analysis together;
    the first trial of changed functions; and, at most 120, the import of an application, or of all applications of a
    code location. A step that takes longer is abandoned and costs an attempt. Default 300: enough for a cold start of
    Spark that fetches jars."""

    retry_backoff_seconds: float = Field(default=1.0, ge=0)
    """Seconds before the second attempt; doubled each time. Default 1: most temporary failures are over by then."""

    retry_backoff_max_seconds: float = Field(default=60.0, ge=0)
    """Largest number of seconds between two attempts. Default 60."""

    tables_url: str = ""
    """Location of `checkpoints/`, `state/` and `lake/`: a prefix of a bucket (`s3://`, `gs://`, `az://`, `abfss://`),
    or a folder. Default: home. The rest of
    home stays there. Do not change it while there are tables: a region would start anew at the new location."""

    databases: dict[str, str] = Field(default_factory=dict, repr=False)
    """Databases that applications name, as SQLAlchemy URLs: `[databases]` in drainmark.toml, or for each a variable
    DRAINMARK_DATABASES__NAME. `{home}` stands for home. Default: none. Not shown: a URL may hold a password."""

    kafka: dict[str, dict[str, str]] = Field(default_factory=dict, repr=False)
    """Kafka clusters that applications name, each with the options of its clients, as librdkafka names them (`_` for
    `.` is allowed): `[kafka.NAME]` in drainmark.toml. `${VARIABLE}` in a value stands for an environment variable, so
    that no file has to hold a password. Default: none. Not shown."""

    files_root: str = ""
    """Folder below which all `FileSink` paths are put, absolute paths and buckets too; `{home}` stands for home. Use it
    to try an application without its real folders. Default: none; relative paths start at the project's root."""

    state_store: str = "delta"
    """Location of the checkpoints of operators in Python (`dm.operator`): `delta`, with the region's other states; or a
    folder, a prefix of a bucket, or `delta://` before either, as chunks in a two-level store. Default: `delta`. Do not
    change it while there are such states: they would begin anew, so the region refuses and names the missing states."""

    pages_url: str = ""
    """Address at which the pages of regions are served, `http(s)://host[:port][/path]`. `APP/START` below it is a page,
    to which Dagster's asset pages link. Default: the address that `drainmark dev` serves beside Dagster; elsewhere
    none; the path of the page's file is shown instead."""

    dagster_url: str = ""
    """Address of Dagster's web server or of the proxy before it, `http(s)://host[:port][/path]`. Its guard serves it
    under this name. If an application cannot be loaded because a bucket does not answer, or because there is no file
    yet to infer its columns from, this server reloads the code location as soon as it can be loaded. Default: that of
    `drainmark dev`; elsewhere none, so you have to reload."""

    openlineage_url: str = ""
    """Address of a receiver of OpenLineage events, `http(s)://host[:port][/path]`; they are posted to `api/v1/lineage`
    below it. It needs the extra `openlineage`. Default: none, and no events."""

    openlineage_api_key: str = Field(default="", repr=False)
    """Key that the receiver of OpenLineage events wants, sent as bearer token. Default: none. Not shown."""

    openlineage_namespace: str = Field(default="drainmark", min_length=1)
    """Namespace of the jobs in OpenLineage events. Default: `drainmark`; give each home its own if several report to
    one receiver and have regions of the same name."""

    otlp_url: str = ""
    """Address of a receiver of OpenTelemetry, `http(s)://host[:port][/path]`: traces go to `v1/traces` below it,
    metrics to `v1/metrics`, by OTLP over HTTP. It needs the extra `otel`. Default: none, and nothing is sent."""

    otlp_headers: dict[str, str] = Field(default_factory=dict, repr=False)
    """Headers of the requests to `otlp_url`, such as a key: `[otlp_headers]` in drainmark.toml, or for each a variable
    DRAINMARK_OTLP_HEADERS__NAME. Default: none. Not shown."""

    s3_endpoint_url: str | None = None
    """Address of an S3-compatible server, `http(s)://host[:port]`, without credentials. Default: AWS."""

    s3_profile: str | None = None
    """Profile of the AWS configuration. Default: boto3's own chain (AWS_* variables, default profile, role)."""

    s3_region: str | None = None
    """Region of the buckets. Default: that of the profile or the environment."""

    @field_validator("spark", "spark_master")
    @classmethod
    def _is_known_spark(cls, value: str, info: ValidationInfo) -> str:
        names = _CHOICES if info.field_name == "spark" else ()
        if value not in names and not _MASTER.fullmatch(value):
            raise ValueError(f"must be {', '.join((*names, *_MASTERS))}")
        return value

    @field_validator("s3_endpoint_url", "openlineage_url", "otlp_url")
    @classmethod
    def _is_plain_address(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and (value or info.field_name == "s3_endpoint_url"):
            parts = urlsplit(value)
            if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
                raise ValueError("must be the http(s) address of a server, without user, password or query")
        return value

    @field_validator("pages_url", "dagster_url")
    @classmethod
    def _is_address_of_a_site(cls, value: str) -> str:
        if value and (urlsplit(value).scheme not in ("http", "https") or not urlsplit(value).hostname):
            raise ValueError("must be an http(s) address")
        return value.rstrip("/")

    @field_validator("tables_url")
    @classmethod
    def _is_place_of_tables(cls, value: str) -> str:
        try:
            is_wrong = "://" in value and bool(re.search(r"[?#]", value) or not address_of(value))
        except UsageError:
            is_wrong = True
        if is_wrong:
            raise ValueError("must be a prefix of a bucket, without credentials or a query, or a folder")
        return value

    on_halt: tuple[str, ...] = ()
    """Command and arguments, run without a shell when a region becomes HALTED, with JSON on its standard input; killed
    after 30 s. Default: none."""

    _kafka_written: dict[str, dict[str, str]] = PrivateAttr(default_factory=dict)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use only the values of the constructor: `load_settings` has merged them, and tests see no environment."""
        return (init_settings,)

    @property
    def master(self) -> str:
        """Return the Spark master: `spark` if it is an address, else `spark_master`."""
        return self.spark_master if self.spark in _CHOICES else self.spark

    @property
    def kafka_written(self) -> dict[str, dict[str, str]]:
        """Return the setting `kafka` as it is written, with its `${VARIABLE}`s."""
        return self._kafka_written or self.kafka

    def wants_resident(self, *, by_default: bool) -> bool:
        """Say whether a process is to use the resident Spark; `by_default` is the answer for `auto`."""
        return is_local(self.master) and (self.spark == "resident" or (self.spark == "auto" and by_default))

    def make_home(self) -> None:
        """Make the folder of home, readable only by this user; an existing folder stays unchanged."""
        sync_folder(*make_folder(self.home, mode=0o700))

    def pause_seconds(self, failures: int) -> float:
        """Return the seconds to wait after so many failures in a row."""
        return min(self.retry_backoff_seconds * 2.0 ** min(failures - 1, 64), self.retry_backoff_max_seconds)

    @property
    def dagster_home(self) -> Path:
        """Return the folder for `DAGSTER_HOME` under `drainmark dev`."""
        return self.home / "dagster"


def load_settings(project: Path | None = None, **flags: Any) -> Settings:
    """Return the settings of this process: flags (None = not given) over `DRAINMARK_*` over `drainmark.toml`.

    A relative home starts at the working directory if it is a flag, else at the project's root.

    Args:
        project: the folder whose `drainmark.toml` counts, or a folder below it; `DRAINMARK_PROJECT`, or else the
            working directory, by default.

    Raises:
        HomeNotFound: no flag and no variable sets home, and there is no `drainmark.toml`.
        UsageError: a value is wrong or a key is unknown; `facts["fields"]` names them. Or a project is named, and there
            is no `drainmark.toml`.
    """
    settings_file = _settings_file(project)
    given = {name: value for name, value in flags.items() if value not in (None, "")}
    values: dict[str, Any] = {
        **(_read_toml(settings_file) if settings_file else {}),
        **_read_environment(),
        **given,
    }
    root = (settings_file.parent if settings_file else Path.cwd()).resolve()
    values["project_root"] = root if "project_root" not in given else Path(given["project_root"]).resolve()
    if "home" in given:
        values["home"] = _expanded(given["home"]).resolve()
    else:
        values["home"] = _home(values.get("home"), settings_file, values["project_root"])
    _require_plain(values["home"])
    written = values.get("kafka", {})
    values["kafka"] = _with_variables(written)
    values["registry_url"] = _registry_url(values.get("registry_url"), values["home"], values["project_root"])
    try:
        found = Settings(**values)
    except ValidationError as error:
        raise _wrong_values(error, settings_file) from None  # the cause quotes the values, passwords among them
    if found.heartbeat_seconds >= found.lease_seconds:
        raise UsageError(
            f"heartbeat_seconds is {found.heartbeat_seconds:g} and lease_seconds {found.lease_seconds:g}: "
            "others would take a region whose owner is alive",
            remedy="make heartbeat_seconds a fifth of lease_seconds",
            fields={"heartbeat_seconds": "must be less than lease_seconds"},
        )
    found._kafka_written = {
        cluster: {name: str(value) for name, value in each.items()} for cluster, each in written.items()
    }
    return found


def _settings_file(project: Path | None) -> Path | None:
    named = project or (Path(os.environ[_PROJECT]) if os.environ.get(_PROJECT) else None)
    found = find_settings_file((named or Path.cwd()).absolute())
    if named is not None and found is None:
        who = _PROJECT if project is None else "project"
        msg = f"no {SETTINGS_FILE} in {named.absolute()} or above it, which {who} names"
        raise UsageError(msg, remedy="name the folder of a project, or make one: `drainmark init PATH`", path=named)
    return found


def find_settings_file(start: Path) -> Path | None:
    """Return the nearest `drainmark.toml` in `start` or above it, as Git finds `.git`; None if there is none."""
    for folder in (start, *start.parents):
        candidate = folder / SETTINGS_FILE
        if candidate.is_file():
            return candidate
    return None


def _home(value: object, settings_file: Path | None, root: Path) -> Path:
    if value:
        return (root / _expanded(os.fspath(str(value)))).resolve()
    if settings_file:
        return root / ".drainmark"
    raise HomeNotFound(
        f"no {SETTINGS_FILE} in {Path.cwd()} or above it, and DRAINMARK_HOME is not set",
        remedy="go into the project, run `drainmark init PATH`, or set DRAINMARK_PROJECT or DRAINMARK_HOME",
    )


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # HOME is not set, and the password file does not know the user either
        raise UsageError(f"{path}: {error}", remedy="give the whole path, without ~, or set HOME") from error


def _require_plain(home: Path) -> None:
    """Refuse a path that is read as another path in the URL of a Delta table or of the registry."""
    if found := _NOT_PLAIN.search(str(home)):
        msg = f"home {home} has {found.group()!r} in its path, which is read as something else in a URL"
        raise UsageError(msg, remedy="choose another folder, by DRAINMARK_HOME or home in drainmark.toml", path=home)


def _registry_url(value: object, home: Path, root: Path) -> object:
    if not value:
        return f"{SQLITE}{home / 'registry.db'}"
    if isinstance(value, str) and value.startswith(SQLITE):
        return f"{SQLITE}{root / value.removeprefix(SQLITE)}"
    return value


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}", remedy=f"fix {path}", path=path) from error


def _read_environment() -> dict[str, Any]:
    source = EnvSettingsSource(Settings, env_prefix=_PREFIX, env_nested_delimiter="__")
    named = (name for name in named_by_files(_PREFIX) if _field(name) in Settings.model_fields)
    of_files = {name.lower(): read_variable(name) for name in named}
    others = {name: value for name, value in source.env_vars.items() if not name.endswith("_file")}
    source.env_vars = {**others, **of_files}
    try:
        return source()
    except SettingsError as error:  # its cause holds the value
        name = next(iter(re.findall(r'field "(\w+)"', str(error))), "")
        variable, is_table = _variable(name), "dict" in str(Settings.model_fields[name].annotation)
        example = '{"name": "value"}' if is_table else '["one", "two"]'
        msg = f"{variable} is no JSON: a {'table' if is_table else 'list'} is written as JSON in a variable"
        raise UsageError(msg, remedy=f"{variable}='{example}'") from None


def _with_variables(clusters: object) -> object:
    """Put environment variables into the settings of clusters.

    Raises:
        UsageError: a variable is not set.
    """
    if not isinstance(clusters, dict) or not all(isinstance(each, dict) for each in clusters.values()):
        return clusters  # `Settings` refuses it and names it

    def value_of(match: re.Match[str]) -> str:
        value = read_variable(match[1])
        if value is None:
            msg = f"the setting kafka names the variable {match[1]}, which is not set"
            raise UsageError(msg, remedy=f"export {match[1]}=…")
        return value

    return {
        cluster: {name: re.sub(r"\$\{(\w+)\}", value_of, str(value)) for name, value in given.items()}
        for cluster, given in clusters.items()
    }


def _field(variable: str) -> str:
    """Return the setting that a variable would give, or a part of it."""
    return variable.removeprefix(_PREFIX).lower().partition("__")[0]


def _variable(name: str) -> str:
    return f"{_PREFIX}{name.replace('.', '__').upper()}"


def is_local(master: str) -> bool:
    """Say whether a master means one JVM on this machine: `local`, `local[4]`, and not `local-cluster[…]`."""
    return re.match(r"local(\[|$)", master) is not None


def _wrong_values(error: ValidationError, settings_file: Path | None) -> UsageError:
    """Return an error that names each wrong setting, its variable or key, and the expected form, but no value."""
    set_here = {name.upper() for name in (*os.environ, *named_by_files(_PREFIX))}
    fields, said = {}, []
    for item in error.errors():
        name = ".".join(str(part) for part in item["loc"])
        place = _variable(name) if _variable(name) in set_here else name
        fields[name] = _expected(name, item["type"], item["msg"])
        said.append(f"{place} {fields[name]}")
    return UsageError(
        f"settings are not usable: {'; '.join(said)}",
        remedy=f"look at the flags, the DRAINMARK_* variables and {settings_file or SETTINGS_FILE}",
        fields=fields,
    )


def _expected(name: str, kind: str, said: str) -> str:
    """Return the fault of a setting, in words for readers who do not know pydantic.

    Args:
        kind, said: the type and the message of pydantic's error.
    """
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(name, Settings.model_fields, n=1)
        return "is no setting" + (f": did you mean {near[0]!r}?" if near else "")
    if (form := _FORMS.get(kind)) is not None:
        return f"must be {form}"
    return said.removeprefix("Value error, ").replace("Input should", "must", 1)
