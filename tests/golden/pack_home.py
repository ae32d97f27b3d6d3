"""Pack the DRAINMARK_HOME of a small project, as this version writes it, for later versions to open (G16).

    python tests/golden/pack_home.py            # writes tests/golden/homes/<version>.tar.xz

Run it once for each release and commit the archive; never pack an old version anew. It uses only the command line and
a SIGKILL. The project is in a fixed folder below /tmp, because checkpoint rows name inputs by absolute paths; the tests
unpack it there. The archive contains:

- `project/`: `packed.py` with two regions (upsert sinks, an append sink, a tumbling window), `drainmark.toml`, and the
  home after: groups of two files, a rewind into a group, files processed again, a skip, a halt and a resume, and a
  run that was killed between the commit of a group and its publishing. The input files that were read are gone;
- `inputs/`: the files of both folders, to process them again;
- `expected.json`: the answers of `history --all` and `show --at` for each region, table and id, and of `status`.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

HOMES = Path(__file__).parent / "homes"
LONG_AGO = 1_000_000_000
SINKS = {
    "packed/orders": ("packed_customers", "packed_orders", "packed_hours"),
    "packed/payments": ("packed_accounts",),
}
APP = '''"""Two regions: orders with a total a customer, every order and a count in six hours; payments with a total."""

import drainmark as dm
from drainmark import F

ORDER = "customer string, amount bigint, ordered_at timestamp"


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="orders", pattern="*.csv", format="csv", schema=ORDER))
def orders(scanned):
    return scanned


@dm.filter
def paid(orders):
    return F.col("amount") > 0


totals = {"orders": dm.count(), "amount": dm.sum("amount")}
customers = dm.aggregate(paid, keys=["customer"], values=totals, name="customers")
hours = dm.aggregate(
    paid, keys=["customer"], window=dm.tumbling("ordered_at", hours=6), values={"orders": dm.count()}, name="hours"
)
dm.sink(customers, dm.DeltaUpsert("packed_customers", keys=["customer"]))
dm.sink(hours, dm.DeltaUpsert("packed_hours", keys=["customer", "window_start"]))
dm.sink(paid, dm.DeltaAppend("packed_orders"))


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="payments", pattern="*.csv", format="csv", schema="account string, amount bigint"))
def payments(scanned):
    return scanned


accounts = dm.aggregate(payments, keys=["account"], values={"amount": dm.sum("amount")}, name="accounts")
dm.sink(accounts, dm.DeltaUpsert("packed_accounts", keys=["account"]))
'''


def project_of(version: str) -> Path:
    """Return the folder of a version's project while it is open."""
    return Path(f"/tmp/drainmark-packed-{version}")


def order_lines(number: int) -> str:
    """Return the text of a file of orders; one order in each file has the amount 0."""
    rows = [("ann", number), ("bob", 10 * number), (f"c{number}", 1), ("eve", 0)]
    return "".join(f"{name},{amount},2026-01-01T{number:02d}:30:00Z\n" for name, amount in rows)


def payment_lines(number: int) -> str:
    return f"acc{number % 2},{number}\n"


class Project:
    """The project during its making."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        (root / "packed.py").write_text(APP)
        (root / "drainmark.toml").write_text('applications = ["packed.py"]\nspark_master = "local[1]"\n')
        for name in ("orders", "payments"):
            (root / name).mkdir()

    def add(self, folder: str, numbers: range) -> None:
        for number in numbers:
            path = self.root / folder / f"{number:03d}.csv"
            path.write_text(order_lines(number) if folder == "orders" else payment_lines(number))
            os.utime(path, (LONG_AGO + number, LONG_AGO + number))

    def call(self, *arguments: str, code: int = 0, **environment: str) -> Any:
        """Run `drainmark … --json` in the project; return the JSON that it prints."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("DRAINMARK_", "SPARK_"))}
        ended = subprocess.run(
            [sys.executable, "-m", "drainmark.orchestration.cli.main", *arguments, "--json"],
            cwd=self.root, env={**clean, "PYTHONPATH": os.getcwd(), **environment},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert ended.returncode == code, f"{arguments}: {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
        return json.loads(ended.stdout) if ended.stdout else None


def live(project: Project) -> None:
    """Run the steps that give the project the history of an older home."""
    project.add("orders", range(1, 5))
    project.add("payments", range(1, 3))
    project.call("run", "packed.py", "--max-group", "2")
    project.call("reset", "packed/orders", "--to", "3", "--yes")
    project.call("run", "packed.py")
    project.add("orders", range(5, 6))
    project.call("scan", "packed.py")
    project.call("skip", "packed/orders", "--file", "005.csv", "--reason", "not wanted")
    project.call("halt", "packed/payments", "--reason", "by hand")
    project.call("resume", "packed/payments", "--reason", "go on")
    project.add("orders", range(6, 8))
    project.call(
        "run", "packed.py", "--region", "packed/orders", code=-9, DRAINMARK_FAILPOINTS="publish.before_commit:kill"
    )


def answers(project: Project) -> dict[str, Any]:
    """Return the answers of the command line about the home."""
    said: dict[str, Any] = {"status": project.call("status"), "history": {}, "shown": {}}
    for region, tables in SINKS.items():
        history = project.call("history", region, "--all")
        said["history"][region] = history
        effective = [entry["sequence_id"] for entry in project.call("history", region)]
        for table in tables:
            said["shown"][table] = {str(n): project.call("show", table, "--at", str(n)) for n in (0, *effective)}
    return said


def pack(version: str) -> Path:
    """Make the project and its archive; return the archive's path."""
    project = Project(project_of(version))
    try:
        live(project)
        expected = answers(project)
        for folder in ("orders", "payments"):
            (project.root / folder).rename(project.root / f"{folder}.read")
            (project.root / folder).mkdir()
        return archive(project.root, version, expected)
    finally:
        shutil.rmtree(project.root)


def archive(root: Path, version: str, expected: dict[str, Any]) -> Path:
    target = HOMES / f"{version}.tar.xz"
    (root / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True))

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if any(part in {"spark", "copies", "inbox", "__pycache__"} for part in Path(member.name).parts):
            return None
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(target, "w:xz", preset=9) as packed:
        for name in ("packed.py", "drainmark.toml", ".drainmark", "orders", "payments"):
            packed.add(root / name, f"project/{name}", filter=kept)
        for name in ("orders", "payments"):
            packed.add(root / f"{name}.read", f"inputs/{name}", filter=kept)
        packed.add(root / "expected.json", "expected.json", filter=kept)
    return target


if __name__ == "__main__":
    made = pack(importlib.metadata.version("drainmark"))
    print(f"{made}: {made.stat().st_size} bytes")
