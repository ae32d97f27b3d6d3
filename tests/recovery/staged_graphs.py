"""The graphs of regions in stages: many sources, many sinks, a cycle, ports, many regions; each with aligned states,
and with unaligned states with channels in memory or durable ones.

The application of a topology is written once; each mode has a copy of it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from order_files import FILES, Row, add_orders, numbered, orders_of, orders_oracle, payments_text, shop
from scene import Build, Oracle, Scene, write_file

from drainmark.orchestration.testing.crash.children import Nursery

APPS = Path(__file__).parent / "apps"
MANY = 6
"""The same constant as in `staged_cycle`."""

MODES: Mapping[str, Mapping[str, str]] = {
    "aligned": {"alignment": "aligned"},
    "unaligned": {"alignment": "unaligned", "channels": "memory"},
    "durable": {"alignment": "unaligned", "channels": "durable"},
}


@dataclass(frozen=True, kw_only=True)
class Topology:
    """A kind of graph.

    Attributes:
        start: the start that gives the region its name.
        folders: the folders that the sources scan.
        write: the function that writes the files of all sources.
        oracle: the function that makes the oracle from the folder of the scene.
        slow: the stage of the slow operator.
        takes_one: whether an operator sees one file at a time.
        outside: the table of the autonomous operators after the region.
        beside: the start and the sinks of a second region.
    """

    start: str
    folders: Sequence[str]
    sinks: Sequence[str]
    oracle: Callable[[Path], Oracle]
    write: Callable[[Scene], None] = add_orders
    settings: Callable[[], dict[str, Any]] = dict
    slow: str = "slow"
    takes_one: bool = False
    outside: str = ""
    beside: tuple[str, Sequence[str]] | None = None


def build(topology: str, mode: str, nursery: Nursery, master: str, folder: Path) -> Scene:
    """Return a topology's scene in a mode; its application is that of `apps`, with the mode and the gate filled in."""
    kind = TOPOLOGIES[topology]
    scene = Scene(
        nursery=nursery,
        master=master,
        folder=folder,
        app=app_in(mode, f"staged_{topology}", folder),
        region=f"staged_{topology}/{kind.start}",
        inputs=tuple(f"{name}={folder / name}" for name in kind.folders),
        oracle=kind.oracle(folder),
        sinks=tuple(kind.sinks),
        settings=kind.settings(),
    )
    scene.gate.open()
    kind.write(scene)
    return scene


def app_in(mode: str, name: str, folder: Path) -> str:
    """Write an application of `apps` to a folder, with a mode and the folder's gate filled in; return its path."""
    app = folder / "app" / f"{name}.py"
    text = (APPS / app.name).read_text()
    for constant, value in (("MODE: dict[str, Any] = {}", MODES[mode]), ('GATE = ""', str(folder / "gate"))):
        assert text.count(f"\n{constant}\n") == 1, constant
        text = text.replace(f"\n{constant}\n", f"\n{constant.rpartition('=')[0]}= {value!r}\n")
    app.parent.mkdir()
    app.write_text(text)
    return str(app)


# --- files --------------------------------------------------------------------------------------------------------


def add_payments(scene: Scene) -> None:
    add_orders(scene)
    chance = Random(11)
    for number in range(FILES):
        write_file(scene.folder / "payments" / f"payments-{number:03d}.csv", payments_text(chance))


def add_notices(scene: Scene) -> None:
    add_orders(scene)
    write_file(scene.folder / "notices" / "1.jsonl", '{"item":"tea","text":"late"}\n')


def add_slices(scene: Scene) -> None:
    """Write a file for each start and trigger; the triggers are slices of a period."""
    chance = Random(17)
    for number in range(1, FILES + 1):
        rows = [{"k": chance.choice("abc"), "n": chance.randrange(-9, 99)} for _ in range(9)]
        lines = [f"{row['k']},{row['n']}\n" for row in rows[:5]]
        left = write_file(scene.folder / "left" / f"{number}.csv", "".join(lines))
        lines = [json.dumps(row) + "\n" for row in rows[5:]]
        right = write_file(scene.folder / "right" / f"{number}.json", "".join(lines))
        trigger = Path(f"period:{scene.region}#{number}")
        scene.files.append(trigger)
        scene.behind[trigger] = (left, right)


# --- oracles ------------------------------------------------------------------------------------------------------


def taken_of(files: Sequence[Path]) -> list[Row]:
    return [row for path in files for row in orders_of(path)]


def of_orders(taken: str, folder: Path) -> Oracle:
    """Return the oracle of customers and items, and of the table `taken`."""
    return lambda files: {**orders_oracle(files), taken: taken_of(files)}


def of_cycle(folder: Path) -> Oracle:
    """Return the oracle of the cycle: a file sees the bans of the files before it."""

    def oracle(files: Sequence[Path]) -> Mapping[str, Sequence[Row]]:
        counts: Counter[str] = Counter()
        allowed: list[Row] = []
        for rows in numbered([orders_of(path) for path in files]):
            passed = [row for row in rows if counts[row["customer"]] < MANY]
            counts.update(row["customer"] for row in passed)
            allowed += [{name: row[name] for name in ("place", "customer", "item")} for row in passed]
        customers = [{"customer": name, "orders": count} for name, count in counts.items()]
        return {"cycle_taken": taken_of(files), "cycle_allowed": allowed, "cycle_customers": customers}

    return oracle


def of_sources(folder: Path) -> Oracle:
    def oracle(files: Sequence[Path]) -> Mapping[str, Sequence[Row]]:
        left, right = [], []
        for number in (str(path).rpartition("#")[2] for path in files):
            pairs = [line.split(",") for line in (folder / "left" / f"{number}.csv").read_text().splitlines()]
            left.append([{"k": k, "n": int(n)} for k, n in pairs])
            right.append([json.loads(line) for line in (folder / "right" / f"{number}.json").read_text().splitlines()])
        both = [row for rows in numbered([a + b for a, b in zip(left, right, strict=True)]) for row in rows]
        totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for row in both:
            totals[row["k"]] = [totals[row["k"]][0] + 1, totals[row["k"]][1] + row["n"]]
        return {
            "sources_left": [row for rows in left for row in rows],
            "sources_all": both,
            "sources_totals": [{"k": k, "rows": rows, "total": total} for k, (rows, total) in totals.items()],
        }

    return oracle


def of_sinks(folder: Path) -> Oracle:
    def oracle(files: Sequence[Path]) -> Mapping[str, Sequence[Row]]:
        passed = list(numbered([orders_of(path) for path in files]))
        late = [[{name: row[name] for name in row if name != "place"} for row in rows] for rows in passed]
        return {
            "database/shop/sold": taken_of(files),
            "database/shop/customers": orders_oracle(files)["two_customers"],
            "database/shop/newest": list({row["customer"]: row for rows in late for row in rows}.values()),
            "last_file": late[-1] if late else [],
            "files/home/out": [row for rows in passed for row in rows],
        }

    return oracle


# --- all of them --------------------------------------------------------------------------------------------------

_OF_ORDERS = ("two_customers", "two_item_changes")

TOPOLOGIES: Mapping[str, Topology] = {
    "cycle": Topology(
        start="orders", folders=("orders",), sinks=("cycle_taken", "cycle_allowed", "cycle_customers"),
        oracle=of_cycle, takes_one=True,
    ),
    "sources": Topology(
        start="left", folders=("left", "right"), sinks=("sources_left", "sources_all", "sources_totals"),
        oracle=of_sources, write=add_slices, settings=lambda: {"slice_bytes": 2}, slow="both",
    ),
    "sinks": Topology(
        start="orders", folders=("orders",), oracle=of_sinks, settings=shop,
        sinks=("database/shop/sold", "database/shop/customers", "database/shop/newest", "last_file", "files/home/out"),
    ),
    "regions": Topology(
        start="orders", folders=("orders", "payments"), sinks=(*_OF_ORDERS, "regions_taken"),
        oracle=partial(of_orders, "regions_taken"), write=add_payments,
        beside=("payments", ("regions_accounts", "regions_payments")),
    ),
    "ports": Topology(
        start="orders", folders=("orders", "notices"), sinks=(*_OF_ORDERS, "ports_taken"),
        oracle=partial(of_orders, "ports_taken"), write=add_notices, takes_one=True, outside="ports_shipped",
    ),
}  # fmt: skip

STAGED: Mapping[str, Build] = {
    f"{topology}-{mode}": partial(build, topology, mode) for topology in TOPOLOGIES for mode in MODES
}

REGION_BESIDE: Mapping[str, tuple[str, Sequence[str]]] = {
    f"{name}-{mode}": (f"staged_{name}/{kind.beside[0]}", kind.beside[1])
    for name, kind in TOPOLOGIES.items() if kind.beside is not None for mode in MODES
}  # fmt: skip


def topology_of(graph: str) -> Topology | None:
    """Return the topology of a graph in stages; None for any other graph."""
    return TOPOLOGIES[graph.partition("-")[0]] if graph in STAGED else None


def is_unaligned(graph: str) -> bool:
    """Say whether a graph in stages has unaligned states, which overtake the batches in flight."""
    return graph in STAGED and MODES[graph.partition("-")[2]]["alignment"] == "unaligned"
