"""What a sensor's tick costs over a folder and a prefix of a million known files, and the registry's part of it.

A tick is here what the sensor does but for Dagster's own: `scan_region`, is anything pending, who owns the region. What
is known was written to the registry in bulk. The store is a small server of our own that speaks ListObjectsV2 over a
sorted list of keys: test servers take seconds a page at a million keys, and what is measured is our side. Its answers
cost what a page of XML costs, but no network: a real store adds some 30 ms a request.

Part `listing` has a million files in a tree of folders, and a hundred thousand in one folder and in a bucket, as what a
tick costs there is to be seen with few, too; part `listing_million` has a million in each of these, ten minutes.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import http.server
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from xml.sax.saxutils import escape

import psutil
from rich.console import Console
from sqlalchemy import text

from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.protocol.records.triggers import NewTrigger, RebuiltTrigger, TriggerStatus
from drainmark.jobs.regions.plan import compile_application
from drainmark.jobs.scan.folder import identity_key, identity_of
from drainmark.jobs.scan.index import ScanLimits, ScanNote, in_batches
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.registry.lease import describe
from drainmark.resources.registry.registry import Registry
from drainmark.resources.registry.scan_queries import RegistryScans
from drainmark.resources.registry.triggers import insert
from drainmark.resources.settings import Settings

REGION = "word_count/lines"
TICKS = 50
FILES, FEWER, QUICK = 1_000_000, 100_000, 10_000


def measure(console: Console, *, quick: bool, root: Path) -> dict[str, float]:
    """Measure the tree of folders, and fewer files in one folder and in a bucket; `quick`: few files everywhere.

    Returns:
        idle_tick_*_s: seconds of the median tick that finds nothing new. `folders`: a tree of 1000 directories, `flat`:
            all files in one, `keys`: a bucket with 1000 folders; `flat_100k` and `keys_100k`: the same with 100k files;
            `round`: the longest tick that takes a slice of a round; `1m_files`: the tree of folders.
        round_*_s: seconds to compare everything once, spread over ticks (`ScanLimits.share`).
        first_scan_*_s: seconds until all files are recorded.
        new_file_*_s: seconds of the tick that finds one new file.
        idle_tick_memory_mb: growth of the process over `TICKS` ticks.
        registry_pending_growth: seconds of `pending` and `take_ids` with all these files known, over those with ten.
    """
    files, fewer = (QUICK, QUICK) if quick else (FILES, FEWER)
    with tempfile.TemporaryDirectory(prefix="folders-", dir=root) as folder:
        found = _folder(console, Path(folder), "folders", files, files // 1000)
    found |= _flat_and_bucket(console, root, fewer, suffix="_100k")
    found["idle_tick_1m_files_s"] = found["idle_tick_folders_s"]
    console.print({name: round(value, 4) for name, value in found.items()})
    return found


def measure_million(console: Console, *, quick: bool, root: Path) -> dict[str, float]:
    """Measure one folder and a bucket of a million files each, 10 000 with `quick`.

    Returns:
        the keys of `measure`, and `idle_tick_1m_others_s`: the slower idle tick of the two.
    """
    found = _flat_and_bucket(console, root, QUICK if quick else FILES)
    found["idle_tick_1m_others_s"] = max(found[f"idle_tick_{shape}_s"] for shape in ("flat", "keys"))
    console.print({name: round(value, 4) for name, value in found.items()})
    return found


def _flat_and_bucket(console: Console, root: Path, files: int, suffix: str = "") -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="flat-", dir=root) as folder:
        found = _folder(console, Path(folder), f"flat{suffix}", files, 1)
    with tempfile.TemporaryDirectory(prefix="keys-", dir=root) as folder:
        return found | _bucket(console, Path(folder), f"keys{suffix}", files)


# --- folders ------------------------------------------------------------------------------------------------------


def _folder(console: Console, root: Path, shape: str, files: int, directories: int) -> dict[str, float]:
    inbox = root / "inbox"
    began = time.perf_counter()
    names = _make_files(inbox, files, directories)
    console.print(f"{shape}: {files} files in {directories} directories made in {time.perf_counter() - began:.0f} s")
    place, opened = _opened(root, str(inbox))
    if shape == "folders":
        first = _seconds(lambda: _scanned(place, opened, files))
        console.print(f"{shape}: first scan {first:.1f} s")
        _all_committed(place)
    else:
        _insert(place.registry, ((path, _identity(path)) for path in names))
        first = _seconds(lambda: _scanned(place, opened, 0))
        console.print(f"{shape}: first scan of known files {first:.1f} s")
    found = {f"first_scan_{shape}_s": first, **_ticks(place, opened, shape)}
    newcomer = Path(names[-1]).with_name("zz-new.txt")
    newcomer.write_text("new")
    os.utime(newcomer, (time.time() - 60,) * 2)
    found[f"new_file_in_{shape}_s"] = _seconds(lambda: _scanned(place, opened, 1))
    found |= _round(place, opened, shape)
    if shape == "folders":
        found["registry_pending_growth"] = _pending_growth(place, root)
    place.registry.close()
    return found


def _make_files(inbox: Path, files: int, directories: int) -> list[str]:
    """Make empty files, and wait until the scan trusts their directories; return the files' paths."""
    names = []
    for directory in range(directories):
        below = inbox / f"{directory:04d}" if directories > 1 else inbox
        below.mkdir(parents=True)
        for number in range(files // directories):
            name = f"{below}/{number:07d}.txt"
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
            names.append(name)
    time.sleep(2.5)  # the scan does not trust a directory that changed just now
    return names


def _identity(path: str) -> Mapping[str, object]:
    return identity_of(os.stat(path))


# --- buckets ------------------------------------------------------------------------------------------------------


def _bucket(console: Console, root: Path, shape: str, files: int) -> dict[str, float]:
    keys = [f"in/{number // 1000:04d}/{number:07d}.txt" for number in range(files)]
    with _listing_server(root, keys) as endpoint:
        place, opened = _opened(root, "s3://bucket/in", s3_endpoint_url=endpoint)
        _insert(place.registry, ((f"s3://bucket/{key}", {"etag": "e", "size": 1}) for key in keys))
        first = _seconds(lambda: _scanned(place, opened, 0))
        console.print(f"{shape}: first scan of {files} known keys {first:.1f} s")
        found = {f"first_scan_{shape}_s": first, **_ticks(place, opened, shape), **_round(place, opened, shape)}
        place.registry.close()
    return found


@contextlib.contextmanager
def _listing_server(root: Path, keys: list[str]) -> Iterator[str]:
    """Serve listings of a bucket from a separate process; yield its address."""
    (root / "keys.txt").write_text("\n".join(keys))
    command = [sys.executable, __file__, "--serve", str(root / "keys.txt")]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    given = {"AWS_ACCESS_KEY_ID": "benchmark", "AWS_SECRET_ACCESS_KEY": "benchmark", "AWS_DEFAULT_REGION": "us-east-1"}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
    finally:
        server.kill()
        server.wait()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


class _Listings(http.server.BaseHTTPRequestHandler):
    """A server of `GET /bucket?list-type=2&prefix=…&start-after=…&max-keys=…`; no versions; other answers are empty."""

    protocol_version = "HTTP/1.1"
    keys: tuple[str, ...] = ()

    def do_GET(self) -> None:
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query, keep_blank_values=True)
        if "list-type" in query:
            after, prefix = query.get("start-after", [""])[0], query.get("prefix", [""])[0]
            self._answer(self._page(after, prefix, int(query.get("max-keys", ["1000"])[0])))
        else:
            self._answer("<VersioningConfiguration/>" if "versioning" in query else "", 200)

    def _page(self, after: str, prefix: str, count: int) -> str:
        first = bisect.bisect_right(self.keys, after) if after >= prefix else bisect.bisect_left(self.keys, prefix)
        page = [key for key in self.keys[first : first + count] if key.startswith(prefix)]
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            "<ETag>&quot;e&quot;</ETag><Size>1</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for key in page
        )
        more = str(first + count < len(self.keys)).lower()
        return f"<ListBucketResult><IsTruncated>{more}</IsTruncated>{entries}</ListBucketResult>"

    def _answer(self, body: str, status: int = 200) -> None:
        sent = body.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(sent)))
        self.send_header("Content-Type", "application/xml")
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def _serve(file: Path) -> None:
    _Listings.keys = tuple(file.read_text().split("\n"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Listings)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


# --- ticks --------------------------------------------------------------------------------------------------------


def _opened(root: Path, location: str, **settings: object) -> tuple[Workplace, Opened]:
    """Open the application `word_count` on a folder or prefix, recursively."""
    place = Workplace(Settings(home=root / "home", project_root=root, **settings))  # type: ignore[arg-type]
    found = open_application("word_count", inputs=[location])
    operators = [
        replace(operator, scan=replace(operator.scan, recursive=True))
        if isinstance(operator, DirectorySource)
        else operator
        for operator in found.application.operators
    ]
    return place, replace(found, plan=compile_application(replace(found.application, operators=tuple(operators))))


def _tick(place: Workplace, opened: Opened) -> None:
    region = opened.region()
    place.history(region.name)
    assert scan_region(place, region).new_count == 0
    place.registry.pending_count(region.name)
    describe(place.registry, region.name, lease_seconds=15.0)


def _ticks(place: Workplace, opened: Opened, shape: str) -> dict[str, float]:
    """Time idle ticks, and the growth of memory, in the process that made the first scan."""
    _tick(place, opened)
    before = psutil.Process().memory_info().rss
    seconds = [_seconds(lambda: _tick(place, opened)) for _ in range(TICKS)]
    growth = (psutil.Process().memory_info().rss - before) / 2**20
    return {
        f"idle_tick_{shape}_s": statistics.median(seconds),
        f"idle_tick_{shape}_memory_mb": growth,
    }


def _round(place: Workplace, opened: Opened, shape: str) -> dict[str, float]:
    """Time ticks that each take a whole slice, until everything is compared."""
    memory = RegistryScans(place.registry, REGION)
    note = ScanNote.from_text(memory.load_note())
    if note is None or not note.is_large:
        return {}
    memory.keep(note.token, replace(note, began=0.0).to_text())
    place.inputs.limits = ScanLimits(share=1e9)
    place.inputs._scanners.clear()
    seconds = []
    while (note := ScanNote.from_text(memory.load_note())) is not None and (not note.began or note.at is not None):
        seconds.append(_seconds(lambda: _tick(place, opened)))
    return {f"idle_tick_{shape}_round_s": max(seconds), f"round_{shape}_s": sum(seconds)}


def _scanned(place: Workplace, opened: Opened, new: int) -> None:
    found = scan_region(place, opened.region()).new_count
    assert found == new, f"{found} are new, not {new}"


def _insert(registry: Registry, files: Iterable[tuple[str, Mapping[str, object]]]) -> None:
    """Record files as known and committed, as if a region had processed them one by one."""
    registry.triggers.add(REGION, [])
    for some in in_batches(enumerate(files, start=1), 50_000):
        with registry.database.writing() as connection:
            committed = (
                RebuiltTrigger(
                    uri=uri, identity=identity, identity_key=identity_key(identity), size_bytes=0,
                    order_index=order, status=TriggerStatus.COMMITTED, sequence_id=order,
                )
                for order, (uri, identity) in some
            )  # fmt: skip
            insert(connection, REGION, committed, 0.0)


def _all_committed(place: Workplace) -> None:
    with place.registry.database.writing() as connection:
        connection.execute(text("UPDATE drainmark_trigger SET status = 'committed', sequence_id = order_index"))


def _pending_growth(place: Workplace, root: Path) -> float:
    """Return the seconds to ask for a group of ten, over those with only ten known files."""
    small = Registry(f"sqlite:///{root}/small.db")
    small.triggers.add(REGION, [_new(number) for number in range(10)])
    place.registry.triggers.add(REGION, [_new(number) for number in range(10)])
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for registry in (small, place.registry):
        registry.progress.set_epoch(REGION, 1)
    for _ in range(200):  # in turns, so that other load of the machine affects both
        for registry in (small, place.registry):
            seconds[registry is small].append(_seconds(lambda registry=registry: _group(registry)))
    small.close()
    return statistics.median(seconds[False]) / statistics.median(seconds[True])


def _group(registry: Registry) -> None:
    triggers = registry.triggers.pending(REGION, 10)
    registry.progress.take_ids(REGION, 1, len(triggers))
    registry.triggers.mark(REGION, 1, [trigger.id for trigger in triggers], TriggerStatus.PENDING, None)


def _new(number: int) -> NewTrigger:
    return NewTrigger(uri=f"/new/{number}", identity={}, identity_key="{}", size_bytes=1)


def _seconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--serve", type=Path)
    given = parser.parse_args()
    if given.serve:
        _serve(given.serve)
    with tempfile.TemporaryDirectory(prefix="drainmark-bench-") as temporary:
        measure(Console(), quick=given.quick, root=Path(temporary))
