"""Checks of this machine and this home: Java, versions, disk, store, settings of Spark and of Dagster."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING

from drainmark.jobs import world
from drainmark.jobs.errors import DrainmarkError
from drainmark.jobs.regions.formatting import said_of
from drainmark.orchestration.doctor.findings import Finding, fail, ok, warn
from drainmark.resources.settings import SQLITE

if TYPE_CHECKING:
    from dagster import DagsterInstance

    from drainmark.resources.storage.folder import Folder
    from drainmark.resources.storage.store_probe import Habit


_ENOUGH_BYTES = 1024**3
_NETWORK = frozenset(
    {"9p", "afs", "ceph", "cifs", "davfs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs"}
)
_OF_TABLES = ("checkpoints", "state", "lake")
_IN_MEMORY = frozenset({"ramfs", "tmpfs"})
_MOUNTS = Path("/proc/mounts")
_S3A_OVERWRITES = {"fs.s3a.performance.flags": {"create", "*"}, "fs.s3a.create.performance": {"true"}}


def java() -> tuple[str | None, Finding]:
    """Return the version of the Java that Spark starts with, None if there is none, and the finding."""
    from drainmark.resources.spark.session import check_java

    try:
        check_java()
        told = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except (DrainmarkError, OSError, subprocess.TimeoutExpired):
        return None, fail("java", "Spark needs a Java runtime and none was found", "install Java 17")
    quoted = told.split('"')
    found = quoted[1] if len(quoted) > 1 else told.strip()
    return found or None, ok("java", f"Java {found}")


def versions() -> Finding:
    """Compare the installed packages with the versions that Drainmark requires: these have no known vulnerability."""
    from packaging.requirements import Requirement

    try:
        wanted = [Requirement(text) for text in requires("drainmark") or ()]
    except PackageNotFoundError:
        return ok("versions", "a bare checkout: it names no versions")
    wrong = []
    for requirement in wanted:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        found = installed(requirement.name)
        if found is None or not requirement.specifier.contains(found, prereleases=True):
            wrong.append(f"{requirement.name} {found or 'is missing'}, wanted {requirement.specifier}")
    if wrong:
        return fail("versions", "; ".join(wrong), "install what Drainmark asks for, e.g. by make setup")
    return ok("versions", f"{said_of(len(wanted), 'package', 'are', 'is')} as Drainmark asks for")


def installed(package: str) -> str | None:
    """Return the installed version of a package, None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def free_bytes(home: Path) -> tuple[int, Finding]:
    """Return the free bytes on the disk of home, which need not exist yet, and the finding."""
    there = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if free < _ENOUGH_BYTES:
        return free, fail("space", f"only {free} bytes are free below {home}", "make room, for example: drainmark gc")
    return free, ok("space", f"{free / 1e9:.1f} GB are free below {home}")


def tables_disk(tables: Folder, mounts: str | None = None) -> list[Finding]:
    """Check that the disks of the tables have free space, can be written, and are not in memory.

    By `tables_url`, a mount or a link, tables can be on other disks than home. Tables in memory do not outlive the
    machine, or the container.

    Args:
        mounts: text of /proc/mounts; read by default.
    """
    from drainmark.resources.storage.folder import LocalFolder

    if not isinstance(tables, LocalFolder):
        return [ok("tables_disk", f"{tables} is on no disk of this machine")]
    findings, least, mounted = [], None, _mounts(mounts)
    for place in (tables.path, *(tables.path / name for name in _OF_TABLES)):
        if place.is_symlink() and not place.exists():
            target = place.readlink()
            findings.append(fail("tables_disk", f"{place} leads to {target}, which is not there", "mount its disk"))
            continue
        there = next(folder for folder in (place, *place.parents) if folder.exists())
        free = shutil.disk_usage(there).free
        if free < _ENOUGH_BYTES:
            remedy = "make room on its disk, for example: drainmark gc"
            findings.append(fail("tables_disk", f"only {free} bytes are free below {place}", remedy))
        try:
            with tempfile.TemporaryFile(dir=there):
                pass
        except OSError as error:
            remedy = "look at its owner, and at how its disk is mounted"
            findings.append(fail("tables_disk", f"{place} cannot be written: {error}", remedy))
        if (kind := _file_system(there.resolve(), mounted)) in _IN_MEMORY:
            message = f"{place} is in memory ({kind}): its tables are gone with the machine or the container"
            findings.append(warn("tables_disk", message, "keep tables on a disk, or on a volume that is mounted"))
        least = free if least is None else min(free, least)
    return findings or [ok("tables_disk", f"{(least or 0) / 1e9:.1f} GB are free for the tables below {tables}")]


def registry_disk(url: str, mounts: str | None = None) -> Finding:
    """Refuse SQLite on a network disk, whose locks do not hold.

    Args:
        mounts: text of /proc/mounts; read by default.
    """
    if not url.startswith(SQLITE):
        return ok("registry_disk", "the registry is in PostgreSQL")
    file = Path(url.removeprefix(SQLITE)).resolve()
    kind = _file_system(file, _mounts(mounts))
    if kind in _NETWORK or (kind or "").startswith("fuse."):
        message = f"{file} is on a network disk ({kind}), where SQLite loses writes of two processes"
        return fail("registry_disk", message, 'set registry_url = "postgresql://…", or move home to a local disk')
    return ok("registry_disk", f"SQLite is on a local disk ({kind or 'of unknown kind'})")


def _mounts(given: str | None) -> str:
    if given is not None:
        return given
    return _MOUNTS.read_text(encoding="utf-8", errors="replace") if _MOUNTS.exists() else ""


def _file_system(file: Path, mounts: str) -> str | None:
    """Return the type of a file's file system, None if `mounts` does not tell it."""
    found: list[tuple[int, str]] = []
    for line in mounts.splitlines():
        _, place, kind, *_ = line.split(" ")
        mounted = Path(place.encode().decode("unicode_escape"))  # `mounts` has \040 for a space
        if file.is_relative_to(mounted):
            found.append((len(mounted.parts), kind))
    return max(found, default=(0, None), key=lambda item: item[0])[1]


def store(tables: Folder) -> list[Finding]:
    """Check, on the store of the tables, the guarantees that every commit needs."""
    from drainmark.resources.delta.health.store_check import shortcomings
    from drainmark.resources.storage.bucket_folder import BucketFolder

    wrong = shortcomings(tables)
    if wrong:
        return [fail("store", f"{tables}: {what}", "keep tables on another disk or store") for what in wrong]
    findings = [ok("store", f"{tables} never overwrites a file of another writer, and lists new files at once")]
    return findings + [_habit(tables, each) for each in (tables.habits() if isinstance(tables, BucketFolder) else ())]


def _habit(tables: Folder, found: Habit) -> Finding:
    message = f"{tables}: {found.what}"
    if found.remedy is None:
        return ok("store", message)
    return (fail if found.is_fault else warn)("store", message, found.remedy)


def spark_settings(conf: Mapping[str, str]) -> Finding:
    """Refuse the flags with which S3A overwrites existing files."""
    for key, value in conf.items():
        name = key.removeprefix("spark.hadoop.")
        flags = {flag.strip().lower() for flag in value.split(",")}
        if flags & _S3A_OVERWRITES.get(name, set()):
            return fail("spark_conf", f"{key} = {value}: a Delta commit could overwrite another", f"remove {key}")
    return ok("spark_conf", "no setting lets a commit overwrite another")


def resident_spark(home: Path) -> list[Finding]:
    """Report the resident Spark servers of this home; a failed start is a failed check."""
    from drainmark.resources.spark.resident.files import all_servers

    findings = []
    for files in all_servers(home / "spark"):
        access = files.access()
        if access is None or not access.is_kept:
            continue
        if access.failure:
            remedy = f'see {files.folder / "server.log"}; spark = "in-process" goes without it'
            findings.append(fail("resident_spark", f"it does not start: {access.failure[-300:]}", remedy))
        elif access.is_up:
            restarts = f", restarted {access.starts - 1} times" if access.starts > 1 else ""
            where = f"pid {access.pid} listens on 127.0.0.1:{access.port}{restarts}"
            findings.append(
                ok("resident_spark", f"{where}; `drainmark sparks --stop` ends it, the next use starts it again")
            )
        else:
            findings.append(ok("resident_spark", "it is about to start"))
    return findings or [ok("resident_spark", "it does not run; the next run that uses it starts it")]


def jars(are_cached: bool) -> Finding:
    """Say whether Spark starts without the network."""
    if are_cached:
        return ok("jars", "the jars of Delta are here")
    return warn("jars", "the jars of Delta are not here: the first run fetches them", "make setup")


_MESSAGE_LENGTH = 600  # Dagster lists what is wrong behind a line that says that something is
_FRESH_SECONDS = 90.0  # a daemon sends a heartbeat every 30 s


def instance(own: Path, dagster_home: Path) -> list[Finding]:
    """Check the Dagster instance that works on a home; one that is not the home's own may be out of reach from here."""
    try:
        return daemons(dagster_home)
    except Exception as error:
        if dagster_home == own:
            raise
        said = " ".join(f"{type(error).__name__}: {error}".split())[:_MESSAGE_LENGTH]
        message = f"the Dagster instance of {dagster_home} cannot be opened here, so commands tell it nothing: {said}"
        return [warn("instance", message, "type commands where Dagster runs, with its packages and variables")]


def daemons(dagster_home: Path) -> list[Finding]:
    """Check the Dagster instance in a folder, which need not exist: its configuration and its daemons."""
    from drainmark.orchestration.dagster_assets.instance import INSTANCE_FILE, instance_at, missing_lines

    if not dagster_home.is_dir():
        return [ok("dagster", "Dagster has not run here")]
    if not (dagster_home / INSTANCE_FILE).is_file():
        message = f"{dagster_home} has no {INSTANCE_FILE}: Dagster retries nothing and watches nothing"
        return [warn("dagster", message, "start it by drainmark dev, or copy the dagster.yaml that ships")]
    running = sorted(_processes(dagster_home))
    with instance_at(dagster_home) as instance:
        beating = _beating(instance)
        lacks = missing_lines(instance)
        found = [warn("instance", lack, f"add `{line}` to {dagster_home / INSTANCE_FILE}") for lack, line in lacks]
    if len(running) > 1 or len(beating) > 1:
        who = f"pids {', '.join(map(str, running))}" if len(running) > 1 else f"{len(beating)} of them beat"
        message = f"two Dagster daemons work on {dagster_home} ({who}): each starts the same runs"
        return [*found, fail("one_daemon", message, "end all but one")]
    said = "one Dagster daemon works" if running or beating else "no Dagster daemon works"
    return [*found, ok("one_daemon", f"{said} on {dagster_home}")]


def _beating(instance: DagsterInstance) -> set[str]:
    """Return the ids of the daemons with a recent heartbeat: a daemon has one id for all its tasks."""
    beats = instance.get_daemon_heartbeats().values()
    return {beat.daemon_id for beat in beats if beat.daemon_id and world.now() - beat.timestamp < _FRESH_SECONDS}


def _processes(dagster_home: Path) -> Iterator[int]:
    """Yield the pids of the instance's daemons on this machine, if this user may see them."""
    import psutil

    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            if _is_daemon(command) and Path(process.environ().get("DAGSTER_HOME", "/")) == dagster_home:
                yield process.pid
        except (psutil.Error, OSError):
            continue


def _is_daemon(command: list[str]) -> bool:
    names = {Path(word).name for word in command[:4]}
    return "run" in command and bool(names & {"dagster._daemon", "dagster-daemon"})
