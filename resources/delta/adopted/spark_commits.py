"""Commits that delta-spark makes with the transaction id of a region, and the search for them in the log afterwards.

An append takes the transaction from the options of the writer. MERGE and DELETE take it from the session; a setting
that stays there makes every later statement a silent no-op. delta-spark reports a commit that it skips because of its
transaction as a success: only the log shows whether it was made.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import SplitBrain, TableRefused
from drainmark.jobs.frames.arrow import frame_of
from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.protocol.records.ids import app_id
from drainmark.resources.delta import commits, delta_tables
from drainmark.resources.delta.commits import Act, Published
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FIND_LOST_REPLIES = "spark.databricks.delta.commit.idempotencyCheck.enabled"
"""Off by default in delta-spark; then it makes a commit twice if the answer is lost."""

_TXN_APP = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_TAG = "spark.databricks.delta.commitInfo.userMetadata"
FEATURES = "DELTA_UNSUPPORTED_FEATURES"
"""The beginning of the errors of a table with features that delta-spark can neither read nor write."""

_FINAL = (
    "DELTA_VIOLATE_CONSTRAINT",
    "DELTA_NOT_NULL_CONSTRAINT",
    "DELTA_EXCEED_CHAR_VARCHAR",
    FEATURES,
    "AnalysisException",
)
_session_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkCommit:
    """One commit of a region to a table through delta-spark; a retry has the same transaction and tag.

    Attributes:
        version: `txn_version(epoch, id)` of the checkpoint row that is carried out.
        tag: `userMetadata` of the commit: the transaction, and a name that only this owner's attempt has.
    """

    session: SparkSession
    folder: Folder
    region: str
    version: int
    attempt: str = field(default_factory=world.token)

    @property
    def tag(self) -> str:
        return f"{app_id(self.region)} {self.version} {self.attempt}"

    def append(self, rows: DataFrame) -> None:
        """Append rows; the table fills columns that they lack."""
        transaction = {"txnAppId": app_id(self.region), "txnVersion": str(self.version), "userMetadata": self.tag}
        with session_settings(self.session, {FIND_LOST_REPLIES: "true"}):
            rows.write.format("delta").mode("append").options(**transaction).save(self.folder.uri)

    def merge(self, source: pa.Table | DataFrame, keys: Sequence[str], clauses: str) -> None:
        """Merge rows, called `source`, into the table, called `target`; null keys are equal."""
        is_here = not hasattr(source, "createOrReplaceTempView")
        if is_here and not source.num_rows:
            self.append(no_rows(self.session, self.folder))
            return
        view = f"drainmark_{world.token()}"
        same = " AND ".join(f"target.{quoted_name(key)} <=> source.{quoted_name(key)}" for key in keys)
        frame = frame_of(self.session, source) if is_here else source
        frame.createOrReplaceTempView(view)
        try:
            self.run(
                f"MERGE INTO delta.{quoted_name(self.folder.uri)} AS target USING {view} AS source ON {same} {clauses}"
            )
        finally:
            self.session.catalog.dropTempView(view)

    def run(self, statement: str) -> None:
        """Run a statement; if it changes and so commits nothing, append an empty frame, since the version must rise."""
        transaction = {_TXN_APP: app_id(self.region), _TXN_VERSION: str(self.version), _TAG: self.tag}
        with session_settings(self.session, {**transaction, FIND_LOST_REPLIES: "true"}):
            self.session.sql(statement).collect()
        if not commits.is_done(delta_tables.open_table(self.folder), self.region, self.version):
            self.append(no_rows(self.session, self.folder))


def commit(spark: SparkCommit, *, verb: str, prepare: Callable[[Any, SparkCommit], Act]) -> Published:
    """Commit, and retry until the log has the commit; do nothing if the table's version is at or above that of `spark`.

    Args:
        verb: names the fail points.
        prepare: gets the table as `deltalake` opens it, makes all checks on it, and returns the function that commits.

    Raises:
        SplitBrain: delta-spark acknowledged a commit that the log does not have, or the log has the region's
            transaction in a commit that no owner made.
        TableRefused: the table will never take the rows, because its maker changed it.
        CommitOutcomeUnknown, StoreUnavailable: see `commits.commit`.
    """
    attempt = _SparkOutcome(spark)

    def checked(opened: Any) -> Act | None:
        attempt.begin(opened)
        if commits.is_done(opened, spark.region, spark.version):
            return None
        return attempt.noted(prepare(opened, spark))

    return commits.commit(spark.folder, verb=verb, prepare=checked, landed=attempt.landed, writer=None)


def no_rows(session: SparkSession, folder: Folder) -> DataFrame:
    """Return a frame with the table's columns and without rows."""
    return session.read.format("delta").load(folder.uri).where("false")


@contextmanager
def session_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set a session's settings for the statement in the block, and always restore them after it."""
    with _session_lock:
        before = {name: session.conf.get(name, None) for name in settings}
        try:
            for name, value in settings.items():
                session.conf.set(name, value)
            yield
        finally:
            for name, kept in before.items():
                if kept is None:
                    session.conf.unset(name)
                else:
                    session.conf.set(name, kept)


class _SparkOutcome:
    """The answer of delta-spark to a commit, and its comparison with the log."""

    def __init__(self, spark: SparkCommit) -> None:
        self.spark = spark
        self.before = 0
        self.is_acknowledged = False
        self.refusal: Exception | None = None

    def begin(self, opened: Any) -> None:
        """Note the table's version before the commit; raise TableRefused if the last error makes a retry useless."""
        if self.refusal is not None:
            folder = self.spark.folder
            found = re.search(r"\[[A-Z_.]+\] .*", str(self.refusal))
            text = found.group(0)[:500] if found else type(self.refusal).__name__
            msg = f"{folder} does not take rows that are committed: {text}"
            kind = "FEATURE" if FEATURES in text else "CONSTRAINT"
            remedy = f"take the change to the table back (e.g. ALTER TABLE … DROP {kind} …), then run again"
            raise TableRefused(msg, remedy=remedy, table=folder.uri) from self.refusal
        self.before = opened.version()
        self.is_acknowledged = False

    def noted(self, act: Act) -> Act:
        """Return the commit as a function that also notes the answer of delta-spark."""

        def acting() -> None:
            try:
                act()
            except Exception as error:
                if any(sign in f"{type(error).__name__}: {error}" for sign in _FINAL):
                    self.refusal = error
                raise
            self.is_acknowledged = True

        return acting

    def landed(self, opened: Any) -> bool:
        """Say whether the log has the commit, or a later one of the region."""
        spark = self.spark
        if not commits.is_done(opened, spark.region, spark.version):
            if self.is_acknowledged:
                msg = f"delta-spark acknowledged a commit to {spark.folder} that the table's log does not have"
                remedy = "let one JVM write to the table"
                raise SplitBrain(msg, remedy=remedy, table=spark.folder.uri)
            return False
        since = opened.version() - self.before
        tags = [entry.get("userMetadata") or "" for entry in opened.history(since)] if since > 0 else []
        if not any(self._explains(tag) for tag in tags):
            msg = f"{spark.folder} has transaction {spark.version} of {spark.region}, and no owner of it committed that"
            remedy = f"find the other writer that uses the transaction id {app_id(spark.region)!r}"
            raise SplitBrain(msg, remedy=remedy, table=spark.folder.uri)
        return True

    def _explains(self, tag: str) -> bool:
        """Say whether an owner of the region set the tag, for the same checkpoint row or a later one."""
        name, _, rest = tag.partition(" ")
        version = rest.partition(" ")[0]
        return name == app_id(self.spark.region) and version.isdigit() and int(version) >= self.spark.version
