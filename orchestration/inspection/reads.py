"""What a region reads of the tables of other regions, and whether what it read is still there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from drainmark.jobs.printable import shell_word
from drainmark.jobs.protocol.chains import Reading, first_reading, readings_of, stays_of
from drainmark.jobs.protocol.history import RegionHistory, target_before
from drainmark.jobs.runtime.commit.removal.table_drops import table_id_of
from drainmark.orchestration.workplace.workplace import Workplace


def reads_of(workplace: Workplace, history: RegionHistory) -> list[dict[str, Any]]:
    """Return an entry for each start that reads a table which a region made.

    Each has `source`, `region` and `home` (that of the region, null if it is this one), `through` (the id there up to
    which, inclusive, rows were read), `stays` (the id up to which the rows that were read are in force; null if all
    are, or if the other region is in another home: then the next run finds out), `back_to` (with `stays`, the id to
    which this region has to go back), and `is_former` (the code of the other region writes the table no more).
    """
    return [_entry(workplace, history, each) for each in readings_of(history) if each.region is not None]


def readers_by_region(workplace: Workplace) -> Mapping[str, list[dict[str, Any]]]:
    """Return, by region of this home, an entry for each start of another region that reads one of its tables.

    Each has `region` and `source` (the reader and its start), and `through`, the id up to which (inclusive) it has
    read.
    """
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for reader in workplace.own_regions():
        for reading in readings_of(workplace.history(reader)):
            if reading.region is not None and not reading.home:
                entry = {"region": reader, "source": reading.source, "through": reading.through}
                found[reading.region].append(entry)
    return found


def _entry(workplace: Workplace, history: RegionHistory, reading: Reading) -> dict[str, Any]:
    found: dict[str, Any] = {
        "source": reading.source,
        "region": reading.region,
        "home": reading.home or None,
        "through": reading.through,
        "stays": None,
        "back_to": None,
        "is_former": False,
    }
    if reading.home or reading.keeps:
        return found
    upstream = workplace.history(reading.region or "")
    if upstream.last_claim is None:  # its checkpoint table is gone: nobody can say
        return found
    left = (table for table in upstream.former if table.is_managed)
    found["is_former"] = any(table_id_of(workplace.tables / table.name) == reading.table for table in left)
    stays = stays_of(history, reading.source, upstream)
    wrong = first_reading(history, reading.source, lambda number: number > stays) if stays is not None else None
    return found if wrong is None else found | {"stays": stays, "back_to": target_before(history, wrong)}


def remedies_of(region: str, reads: list[dict[str, Any]]) -> list[str]:
    """Return the command that takes a region back to its last state without rows that left."""
    back = [entry["back_to"] for entry in reads if entry["back_to"] is not None]
    return [f"drainmark reset {shell_word(region)} --to {min(back)} --cascade --yes"] if back else []


def told_of_reader(entry: dict[str, Any]) -> str:
    """Return who reads a region, as a sentence about that region."""
    through = f" through id {entry['through']}" if entry["through"] is not None else ""
    return f"is read by {entry['region']} at {entry['source']!r}{through}"


def told_of(entry: dict[str, Any]) -> str:
    """Return what a start reads, as a sentence about its region."""
    home = f" of the home {entry['home']}" if entry["home"] is not None else ""
    through = f" through id {entry['through']}" if entry["through"] is not None else ""
    former = f"; the code of {entry['region']} writes that table no more" if entry["is_former"] else ""
    left = f"; what it read above {entry['stays']} has left there" if entry["stays"] is not None else ""
    return f"reads {entry['region']}{home}{through} at {entry['source']!r}{former}{left}"
