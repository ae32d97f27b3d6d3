"""The graphs of the golden runs with their files and oracles: `log_watch`; the orders beside a second region, with
blocking checkpoints, and with operators in Python. `staged_graphs` has the graphs in stages."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import oracles
from order_files import FILES, add_orders, orders_of, orders_oracle, orders_text, payments_text, shop
from scene import Build, Oracle, Scene, write_file
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


def graph(
    app: str,
    start: str,
    oracle: Oracle,
    *sinks: str,
    fill: Callable[[Scene], object] = lambda scene: None,
    folders: Sequence[str] = ("in",),
    settings: Callable[[], dict[str, Any]] = dict,
    params: Sequence[str] = (),
) -> Build:
    """Return a function that makes the scene of a region.

    Args:
        app: an application of `apps`, or one that comes with Drainmark.
        fill: writes the files of the scene.
        folders: the folders of the inputs; several are named as the inputs.
        params: parameters of the application, each a path below the folder of the scene.
    """

    def build(nursery: Nursery, master: str, folder: Path) -> Scene:
        path = APPS / f"{app}.py"
        scene = Scene(
            nursery=nursery,
            master=master,
            folder=folder,
            app=str(path) if path.exists() else app,
            region=f"{app}/{start}",
            inputs=tuple(f"{name}={folder / name}" if len(folders) > 1 else str(folder / name) for name in folders),
            oracle=oracle,
            sinks=sinks,
            settings=settings(),
            params={name: str(folder / name.removesuffix("_file")) for name in params},
        )
        fill(scene)
        return scene

    return build


def logs(seed: int) -> Callable[[Scene], None]:
    """Return a function that writes the logs of one host."""

    def fill(scene: Scene) -> None:
        for file in generate_syslog(seed=seed, hosts=("combo",), files_per_host=FILES, lines_per_file=100):
            name = file.name.replace("/", "-")
            scene.add(scene.folder / "in" / name, "".join(f"{line}\n" for line in file.lines))

    return fill


def orders_and_payments(scene: Scene) -> None:
    """Write files of orders, and of payments, which are no triggers of the scene's region."""
    chance = random.Random(11)
    for number in range(FILES):
        scene.add(scene.folder / "orders" / f"orders-{number:03d}.csv", orders_text(chance))
        write_file(scene.folder / "payments" / f"payments-{number:03d}.csv", payments_text(chance))


def orders_and_notice(scene: Scene) -> None:
    add_orders(scene)
    write_file(scene.folder / "notices" / "1.jsonl", '{"item":"tea","text":"late"}\n')


def tastes_oracle(files: Sequence[Path]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Return the rows of the sink of `handlers` after these files, in plain Python."""
    tastes: dict[str, set[str]] = defaultdict(set)
    rows: list[dict[str, Any]] = []
    for row in (row for path in files for row in orders_of(path)):
        tastes[row["customer"]].add(row["item"])
        rows.append({"customer": row["customer"], "place": len(rows), "items": len(tastes[row["customer"]])})
    return {"handled_tastes": rows}


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


def lines_oracle(name: str) -> Oracle:
    """Return a function that gives the lines and how often each comes, as the tables of an application."""

    def oracle(files: Sequence[Path]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        lines = [line for path in files for line in path.read_text().splitlines()]
        counts = [{"line": line, "count": count} for line, count in Counter(lines).items()]
        return {f"{name}_counts": counts, f"{name}_lines": [{"line": line} for line in lines]}

    return oracle


def any_name_oracle(files: Sequence[Path]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    lines = [(path, line) for path in files for line in path.read_text().splitlines()]
    return {"any_name": [{"value": line, "source_file": uri_of(str(path))} for path, line in lines]}


OF_ORDERS = (orders_oracle, "two_customers", "two_item_changes")

log_watch = graph(
    "log_watch", "lines", oracles.log_watch,
    "log_watch_failures", "log_watch_hosts", "log_watch_alerts", "log_watch_attacks", fill=logs(7),
)  # fmt: skip
handlers = graph(
    "handlers", "orders", tastes_oracle, "handled_tastes", fill=partial(add_orders, seed=13), folders=["orders"]
)
"""Operators in Python; their state is chunks."""

GRAPHS: Mapping[str, Build] = {
    "log_watch": log_watch,
    LARGE: graph(  # in three stages, on small logs in which each rule fires
        LARGE, "lines", oracles.host_watch,
        "host_watch_attacks", "host_watch_sessions", "host_watch_tickets", "host_watch_pages", fill=logs(26),
    ),
    "two_regions": graph(  # the scene does not run the second region
        "two_regions", "orders", *OF_ORDERS, fill=orders_and_payments, folders=["orders", "payments"]
    ),
    # blocking checkpoints
    "blocking": graph("blocking", "orders", *OF_ORDERS, fill=add_orders, folders=["orders"]),
    "outer": graph(  # sinks outside Delta and an overwritten table
        "outer", "orders", outer_oracle,
        "database/shop/customers", "database/shop/newest", "database/shop/sold", "files/home/out", "last_file",
        fill=add_orders, folders=["orders"], settings=shop,
    ),
    "handlers": handlers,
    SURROUNDED: graph(  # autonomous operators on both sides; the notices need groups of one file
        "surrounded", "orders", *OF_ORDERS, fill=orders_and_notice, folders=["orders", "notices"]
    ),
    # three stages with unaligned states
    IN_FLIGHT: graph("in_flight", "orders", *OF_ORDERS, fill=add_orders, folders=["orders"]),
    **STAGED,
}  # fmt: skip

fragile = graph("fragile", "lines", lines_oracle("fragile"), "fragile_counts", "fragile_lines")
"""User code that fails; the test adds files."""

hanging = graph(
    "hanging", "lines", lines_oracle("hanging"), "hanging_counts", "hanging_lines", params=["pid_file", "hang_file"]
)
"""User code that hangs; the test adds files."""

any_name = graph("any_name", "lines", any_name_oracle, "any_name")
"""Files of any name; the test adds them."""
