"""Program that runs the job of part `bulk` in Polars or DuckDB, once, and prints the result as JSON.

`python limit_peer.py NAME INBOX HOME WARM`, with both on PYTHONPATH (`make bench-limit-setup`). Both read all files at
once, since that is fastest, and write two Parquet files: the rows kept, and the count and sum by file and key. There is
no state, no checkpoint, and nothing for a rewind. After a run over the first WARM files, the measured time begins with
the list of files and ends when both Parquet files are written.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench_input import LIMIT


def polars(files: Sequence[str], kept: Path, totals: Path) -> None:
    """Do the job in Polars: read once, write two results."""
    import polars as pl

    schema = {"id": pl.Int64, "k": pl.String, "amount": pl.Float64, "note": pl.String}
    rows = pl.scan_csv(list(files), has_header=False, schema=schema, include_file_paths="file").collect(
        engine="streaming"
    )
    by_key = rows.lazy().group_by("file", "k").agg(pl.len().alias("n"), pl.col("amount").sum().alias("total"))
    pl.collect_all([
        rows.lazy().filter(pl.col("amount") > LIMIT).sink_parquet(kept, lazy=True),
        by_key.sink_parquet(totals, lazy=True),
    ])  # fmt: skip


def duckdb(files: Sequence[str], kept: Path, totals: Path) -> None:
    """Do the job in DuckDB: read once, write two results."""
    import duckdb as db

    connection = db.connect()
    connection.execute("SET preserve_insertion_order = false")
    connection.execute(
        "CREATE TABLE input AS SELECT * FROM read_csv($files, header = false, filename = true, auto_detect = false,"
        " columns = {'id': 'BIGINT', 'k': 'VARCHAR', 'amount': 'DOUBLE', 'note': 'VARCHAR'})",
        {"files": list(files)},
    )
    rows = connection.table("input")
    rows.filter(f"amount > {LIMIT}").write_parquet(str(kept))
    rows.aggregate("filename AS file, k, count(*) AS n, sum(amount) AS total").write_parquet(str(totals))
    connection.close()


JOBS: dict[str, Callable[[Sequence[str], Path, Path], None]] = {"polars": polars, "duckdb": duckdb}


def main(name: str, inbox: Path, home: Path, warm: int) -> dict[str, Any]:
    """Do the job; return the seconds and, from the files, the number of rows kept and key -> (rows, sum)."""
    home.mkdir(parents=True)
    kept, totals = home / "kept.parquet", home / "totals.parquet"
    JOBS[name]([str(file) for file in sorted(inbox.glob("*.csv"))[:warm]], home / "warm-kept", home / "warm-totals")
    began = time.monotonic()
    JOBS[name]([str(file) for file in sorted(inbox.glob("*.csv"))], kept, totals)
    seconds = time.monotonic() - began
    return {"seconds": seconds, **_results(kept, totals)}


def _results(kept: Path, totals: Path) -> dict[str, Any]:
    import duckdb as db

    (count,) = db.read_parquet(str(kept)).aggregate("count(*)").fetchone()
    by_key = db.read_parquet(str(totals)).aggregate("k, sum(n)::BIGINT, sum(total)").fetchall()
    return {"kept": count, "totals": {key: (rows, total) for key, rows, total in by_key}}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))))
