"""A throw-away PostgreSQL server from the installed binaries, on a Unix socket, for the tests that need a real one."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

CHOSEN = "DRAINMARK_TEST_REGISTRY"
"""With the value `postgres`, the registries of the recovery tests are in a server, not in SQLite files."""

GIVEN = "DRAINMARK_TEST_POSTGRES_URL"
"""The variable with the URL of a database on a running server; other databases may be created beside it."""

_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",  # the machine does not crash in a test, only the server does
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "timezone": "Pacific/Chatham",  # no test may depend on the time zone of the server
}


class PostgresServer:
    """One server in its own folder; every call of `new_database` gives an empty database."""

    def __init__(self) -> None:
        binaries = _binaries()
        assert binaries is not None, why_not()
        self._binaries = binaries
        self._prefix, owner = _other_user()
        # Not the folder of pytest: the user of the server cannot enter it, and its path is too long for a socket.
        self.folder = Path(tempfile.mkdtemp(prefix="drainmark-pg-"))
        if owner is not None:
            os.chown(self.folder, owner, -1)
        self._data = self.folder / "data"
        self._locales = self.folder / "locales"

    def create(self) -> None:
        """Make the cluster and start it."""
        how = ("-U", "drainmark", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        self._call("initdb", "-D", self._data, *how)
        lines = "".join(f"{name} = '{value}'\n" for name, value in _SETTINGS.items())
        self._run("sh", "-c", f"cat >> '{self._data}/postgresql.conf'", given=lines)
        self.start()

    def start(self) -> None:
        options = f"-k {self.folder}"
        self._call("pg_ctl", "start", "-w", "-D", self._data, "-o", options, "-l", self.folder / "log")

    def stop(self, mode: str = "immediate") -> None:
        """End the server; `immediate` is a crash: connections are cut, nothing is flushed."""
        self._call("pg_ctl", "stop", "-w", "-D", self._data, "-m", mode)

    def restart(self, mode: str = "immediate") -> None:
        self.stop(mode)
        self.start()

    def remove(self) -> None:
        """Stop the server, if it runs, and delete its folder."""
        if (self._data / "postmaster.pid").exists():
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_database(self, *, locale: str | None = None) -> str:
        """Return the URL of a new, empty database; skip the test if a locale as `en_US.UTF-8` cannot be made."""
        if locale is not None:
            self._make_locale(locale)
        return new_database(f"postgresql://drainmark@/postgres?host={self.folder}", locale=locale)

    def _make_locale(self, locale: str) -> None:
        """Make a locale of glibc in a folder that the server reads; many machines have only `C`."""
        self._locales.mkdir(exist_ok=True)
        if (self._locales / locale).exists():
            return
        if (localedef := shutil.which("localedef")) is None:
            pytest.skip("glibc's localedef is not installed")
        language, _, charset = locale.partition(".")
        made = subprocess.run(
            [localedef, "-i", language, "-f", charset, self._locales / locale],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        if made.returncode:
            pytest.skip(f"localedef cannot make {locale}: {made.stderr.strip()}")

    def _call(self, program: str, *arguments: str | Path) -> None:
        self._run(str(self._binaries / program), *map(str, arguments))

    def _run(self, *command: str, given: str | None = None) -> None:
        env = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC", "LOCPATH": str(self._locales)}
        done = subprocess.run(
            [*self._prefix, *command], input=given, capture_output=True, text=True, timeout=60, check=False,
            cwd=self.folder, env=env,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def new_database(url: str, *, template: str | None = None, locale: str | None = None) -> str:
    """Create a database beside that of a URL, empty or a copy; return its URL."""
    name = f"drainmark_{uuid.uuid4().hex[:12]}"
    beside = "postgres" if template else make_url(url).database
    parsed = make_url(url).set(drivername="postgresql+psycopg", database=beside)
    engine = create_engine(parsed, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        if template:  # a child that was just killed may still seem to be connected
            ended = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name")
            connection.execute(ended, {"name": template})
        how = f" TEMPLATE {template}" if template else ""
        if locale is not None:
            how = f" TEMPLATE template0 LOCALE '{locale}'"
        connection.execute(text(f"CREATE DATABASE {name}{how}"))
    engine.dispose()
    return make_url(url).set(database=name).render_as_string(hide_password=False)


def copy_database(url: str) -> str:
    """Return the URL of a copy of a database; connections to the original are ended."""
    return new_database(url, template=make_url(url).database)


def why_not() -> str | None:
    """Return why no server can be started here; None if one can."""
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed: pip install 'drainmark[postgres]'"
    if _binaries() is None:
        return "PostgreSQL's initdb is not installed"
    if os.geteuid() == 0 and _other_user()[1] is None:
        return "PostgreSQL refuses to run as root, and there is no setpriv or no user to run it as"
    return None


def _binaries() -> Path | None:
    """Return the folder of initdb: Debian keeps it off the path."""
    path = os.environ.get("PATH", "")
    if told := shutil.which("pg_config"):
        folder = subprocess.run([told, "--bindir"], capture_output=True, text=True, check=True).stdout.strip()
        path = os.pathsep.join([folder, path])
    found = shutil.which("initdb", path=path)
    return Path(found).parent if found else None


def _other_user() -> tuple[Sequence[str], int | None]:
    """Return the prefix of a command that must not run as root, and the id of its user; ((), None) if not needed."""
    if os.geteuid() != 0:
        return (), None
    names = {entry.pw_name: entry.pw_uid for entry in pwd.getpwall()}
    uid = next((names[name] for name in ("postgres", "nobody") if name in names), None)
    setpriv = shutil.which("setpriv")
    if uid is None or setpriv is None:
        return (), None
    return (setpriv, f"--reuid={uid}", "--clear-groups"), uid


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Yield the server of the run; skip the test if none can be started."""
    yield from _started()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Yield a server for one module alone, whose tests may stop it."""
    yield from _started()


def _started() -> Iterator[PostgresServer]:
    if reason := why_not():
        pytest.skip(reason)
    server = PostgresServer()
    try:
        server.create()
        yield server
    finally:
        server.remove()


@functools.cache
def chosen_server() -> PostgresServer | None:
    """Return the server of tests that run on either database; None if they use SQLite. It is removed at exit."""
    if os.environ.get(CHOSEN) != "postgres":
        return None
    server = PostgresServer()
    atexit.register(server.remove)
    server.create()
    return server


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty PostgreSQL database."""
    return empty_database(request)


def empty_database(request: pytest.FixtureRequest) -> str:
    """Make a database on the server that the environment names, or on that of the run; return its URL."""
    if given := os.environ.get(GIVEN):
        return new_database(given)
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.new_database()
