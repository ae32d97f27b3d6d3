"""The graphs of the golden runs with their files and oracles: `log_watch`; the orders beside a second region, with
blocking checkpoints, and with operators in Python. `staged_graphs` has the graphs in stages."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import oracles
from order_files import FILES, add_orders, orders_of, orders_oracle, orders_text, payments_text, shop
from scene import Build, Scene, write_file
from staged_graphs import REGION_BESIDE, STAGED

from drainmark.jobs.scan.folder import uri_of
from drainmark.jobs.testing.syslog import generate_syslog
from drainmark.orchestration.testing.crash.children import Nursery

APPS = Path(__file__).parent / "apps"
SURROUNDED = "surrounded"
IN_FLIGHT = "in_flight"
LARGE = "host_watch"
SECOND_REGION = "two_regions/payments"
SECOND_SINKS = ("two_accounts", "two_payments")

BESIDE: Mapping[str, tuple[str, Sequence[str]]] = {"two_regions": (SECOND_REGION, SECOND_SINKS), **REGION_BESIDE}
"""By graph: a second region and its sinks. No event in the graph's own region may touch it (V29)."""


def log_watch(nursery: Nursery, master: str, folder: Path) -> Scene:
    """Return a scene of `log_watch` on small generated logs."""
    scene = Scene(
        nursery=nursery,
        master=master,
        folder=folder,
        app="log_watch",
        region="log_watch/lines",
        inputs=(str(folder / "in"),),
        oracle=oracles.log_watch,
        sinks=("log_watch_failures", "log_watch_hosts", "log_watch_alerts", "log_watch_attacks"),
    )
    return with_logs(scene, seed=7)


def host_watch(nursery: Nursery, master: str, folder: Path) -> Scene:
    """Return a scene of the large region of `host_watch`, in three stages, on small logs in which each rule fires."""
    scene = Scene(
        nursery=nursery,
        master=master,
        folder=folder,
        app=LARGE,
        region=f"{LARGE}/lines",
        inputs=(str(folder / "in"),),
        oracle=oracles.host_watch,
        sinks=("host_watch_attacks", "host_watch_sessions", "host_watch_tickets", "host_watch_pages"),
    )
    return with_logs(scene, seed=26)


def with_logs(scene: Scene, seed: int) -> Scene:
    """Return a scene with the logs of one host."""
    for file in generate_syslog(seed=seed, hosts=("combo",), files_per_host=FILES, lines_per_file=100):
        name = file.name.replace("/", "-")
        scene.add(scene.folder / "in" / name, "".join(f"{line}\n" for line in file.lines))
    return scene


def two_regions(nursery: Nursery, master: str, folder: Path) -> Scene:
    """Return a scene of `two_regions`; the scene does not run the second region, which reads files of payments."""
    scene = Scene(
        nursery=nursery,
        master=master,
        folder=folder,
        app=str(APPS / "two_regions.py"),
        region="two_regions/orders",
        inputs=(f"orders={folder / 'orders'}", f"payments={folder / 'payments'}"),
        oracle=orders_oracle,
        sinks=("two_customers", "two_item_changes"),
    )
    chance = random.Random(11)
    for number in range(FILES):
        scene.add(folder / "orders" / f"orders-{number:03d}.csv", orders_text(chance))
        write_file(folder / "payments" / f"payments-{number:03d}.csv", payments_text(chance))
    return scene


def orders_alone(nursery: Nursery, master: str, folder: Path, app: str) -> Scene:
    """Return a scene of an application on the orders, with the sinks of `two_regions`."""
    scene = Scene(
        nursery=nursery,
        master=master,
        folder=folder,
        app=str(APPS / f"{app}.py"),
        region=f"{app}/orders",
        inputs=(str(folder / "orders"),),
        oracle=orders_oracle,
        sinks=("two_customers", "two_item_changes"),
    )
    add_orders(scene)
    return scene


def blocking(nursery: Nursery, master: str, folder: Path) -> Scene:
    """Return a scene of the orders alone, in a region with blocking checkpoints."""
    return orders_alone(nursery, master, folder, "blocking")


def handlers(nursery: Nursery, master: str, folder: Path) -> Scene:
    """Return a scene of the orders with operators in Python; their state is chunks."""
    scene = Scene(
        nursery=nursery,
        master=master,
        folder=folder,
        app=str(APPS / "handlers.py"),
        region="handlers/orders",
        inputs=(str(folder / "orders"),),
        oracle=tastes_oracle,
        sinks=("handled_tastes",),
    )
    add_orders(scene, seed=13)
    return scene


def tastes_oracle(files: Sequence[Path]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Return the rows of the sink after these files, in plain Python."""
    tastes: dict[str, set[str]] = defaultdict(set)
    rows: list[dict[str, Any]] = []
    for row in (row for path in files for row in orders_of(path)):
        tastes[row["customer"]].add(row["item"])
        rows.append({"customer": row["customer"], "place": len(rows), "items": len(tastes[row["customer"]])})
    return {"handled_tastes": rows}


def surrounded(nursery: Nursery, master: str, folder: Path) -> Scene:
    """Return a scene of the orders with autonomous operators on both sides; the notices need groups of one file."""
    scene = Scene(
        nursery=nursery,
        master=master,
        folder=folder,
        app=str(APPS / "surrounded.py"),
        region="surrounded/orders",
        inputs=(f"orders={folder / 'orders'}", f"notices={folder / 'notices'}"),
        oracle=orders_oracle,
        sinks=("two_customers", "two_item_changes"),
    )
    add_orders(scene)
    write_file(folder / "notices" / "1.jsonl", '{"item":"tea","text":"late"}\n')
    return scene


def in_flight(nursery: Nursery, master: str, folder: Path) -> Scene:
    """Return a scene of the orders in a region of three stages with unaligned states."""
    return orders_alone(nursery, master, folder, "in_flight")


def outer(nursery: Nursery, master: str, folder: Path) -> Scene:
    """Return a scene of the orders with sinks outside Delta and an overwritten table."""
    scene = Scene(
        nursery=nursery,
        master=master,
        folder=folder,
        app=str(APPS / "outer.py"),
        region="outer/orders",
        inputs=(str(folder / "orders"),),
        oracle=outer_oracle,
        sinks=("database/shop/customers", "database/shop/newest", "database/shop/sold", "files/home/out", "last_file"),
        settings=shop(),
    )
    add_orders(scene)
    return scene


def outer_oracle(files: Sequence[Path]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Return the rows of all sinks of `outer` after these files, in plain Python."""
    rows = [orders_of(path) for path in files]
    sold = [row for part in rows for row in part]
    return {
        "database/shop/customers": orders_oracle(files)["two_customers"],
        "database/shop/newest": list({row["customer"]: row for row in sold}.values()),
        "database/shop/sold": sold,
        "files/home/out": sold,
        "last_file": rows[-1] if rows else [],
    }


GRAPHS: Mapping[str, Build] = {
    "log_watch": log_watch, LARGE: host_watch, "two_regions": two_regions, "blocking": blocking, "outer": outer,
    "handlers": handlers, SURROUNDED: surrounded, IN_FLIGHT: in_flight, **STAGED,
}  # fmt: skip


def fragile(nursery: Nursery, master: str, folder: Path) -> Scene:
    """Return a scene of the application with user code that fails; the test adds files."""
    return _lines(nursery, master, folder, "fragile", {})


def hanging(nursery: Nursery, master: str, folder: Path) -> Scene:
    """Return a scene of the application with user code that hangs; the test adds files."""
    return _lines(nursery, master, folder, "hanging", {"pid_file": folder / "pid", "hang_file": folder / "hang"})


def _lines(nursery: Nursery, master: str, folder: Path, name: str, params: Mapping[str, Path]) -> Scene:
    def oracle(files: Sequence[Path]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        lines = [line for path in files for line in path.read_text().splitlines()]
        counts = [{"line": line, "count": count} for line, count in Counter(lines).items()]
        return {f"{name}_counts": counts, f"{name}_lines": [{"line": line} for line in lines]}

    return Scene(
        nursery=nursery,
        master=master,
        folder=folder,
        app=str(APPS / f"{name}.py"),
        region=f"{name}/lines",
        inputs=(str(folder / "in"),),
        oracle=oracle,
        sinks=(f"{name}_counts", f"{name}_lines"),
        params={key: str(path) for key, path in params.items()},
    )


def any_name(nursery: Nursery, master: str, folder: Path) -> Scene:
    """Return a scene of the application that reads files of any name; the test adds files."""
    return Scene(
        nursery=nursery,
        master=master,
        folder=folder,
        app=str(APPS / "any_name.py"),
        region="any_name/lines",
        inputs=(str(folder / "in"),),
        oracle=any_name_oracle,
        sinks=("any_name",),
    )


def any_name_oracle(files: Sequence[Path]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    lines = [(path, line) for path in files for line in path.read_text().splitlines()]
    return {"any_name": [{"value": line, "source_file": uri_of(str(path))} for path, line in lines]}
