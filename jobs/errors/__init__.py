"""Every error of Drainmark, in one tree: an id for machines, a sentence and a remedy for a tired person.

`retry` tells the control plane how to react: see `Retry`. Tests assert ids and attributes, never the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from drainmark.jobs.printable import printable


class Retry(StrEnum):
    """The reaction to a failure."""

    WAIT = "wait"  # temporary: try again later, no attempt is counted
    ATTEMPT = "attempt"  # reset and replay; one of max_consecutive_reset_attempts
    RENEW = "renew"  # like ATTEMPT, but this process cannot continue: it lost its Spark, or a part of it
    PERMANENT = "permanent"  # trying again cannot help: halt at once, naming the trigger
    QUIET = "quiet"  # another process owns the region: end without a record in the registry
    REFUSE = "refuse"  # nothing was started: the request itself is wrong


@dataclass(frozen=True, slots=True)
class Location:
    """The place of a declaration."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class DrainmarkError(Exception):
    """Base of all errors of Drainmark.

    Args:
        message: the event, its place, and the expectation.
        operator: name of the operator to blame.
        location: place of that operator's declaration.
        remedy: the next thing to do, preferably a command.
        commands: those of the remedy that end a halt, as they are typed; none if that is `drainmark resume` alone.
        facts: further typed attributes, readable as `error.facts["name"]`.

    Example:
        try:
            dm.read("shop/shop", "order_row")
        except dm.DrainmarkError as error:
            print(error.id, error.message, error.remedy)
    """

    id: ClassVar[str] = "ERROR"
    exit_code: ClassVar[int] = 1
    retry: ClassVar[Retry] = Retry.ATTEMPT

    def __init__(
        self,
        message: str,
        *,
        operator: str | None = None,
        location: Location | None = None,
        remedy: str | None = None,
        commands: Sequence[str] = (),
        **facts: Any,
    ) -> None:
        self.message = message
        self.operator = operator
        self.location = location
        self.remedy = remedy
        self.commands = commands
        self.facts = facts
        super().__init__(message)

    def __str__(self) -> str:
        return printable(f"{self.told}{f' → {self.remedy}' if self.remedy else ''}")

    @property
    def told(self) -> str:
        """Return the event and its place without the remedy, for a failure that Drainmark deals with by itself."""
        where = " at ".join(str(known) for known in (self.operator, self.location) if known)
        is_said = not self.operator and where in self.message
        return printable(f"{self.message}{f' [{where}]' if where and not is_said else ''}")

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the CLI's error object."""
        return {
            "id": self.id,
            "message": self.message,
            "operator": self.operator,
            "location": str(self.location) if self.location else None,
            "remedy": self.remedy,
        }


# --- faults of the author or of the user of the command line ---------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One broken rule of the graph: its id, the sentence, and the place."""

    rule: str
    message: str
    operator: str | None = None
    location: Location | None = None
    remedy: str | None = None

    def __str__(self) -> str:
        where = f"{self.location}: " if self.location else ""
        return f"{where}{self.rule}: {self.message}{f' → {self.remedy}' if self.remedy else ''}"


class DeclarationError(DrainmarkError):
    """The graph breaks rules; all violations at once, in `violations`."""

    id = "DECLARATION"
    exit_code = 2
    retry = Retry.REFUSE

    def __init__(self, application: str, violations: Sequence[Violation]) -> None:
        self.violations = tuple(violations)
        first = self.violations[0]
        listing = "\n".join(f"  {violation}" for violation in self.violations)
        rules = "a rule" if len(self.violations) == 1 else f"{len(self.violations)} rules"
        super().__init__(
            f"application {application!r} breaks {rules}:\n{listing}",
            operator=first.operator,
            location=first.location,
            remedy=first.remedy,
        )

    def __str__(self) -> str:
        return printable(self.message)  # it has the place and the remedy of each violation

    def to_json(self) -> dict[str, Any]:
        violations = [
            {
                "id": violation.rule,
                "message": violation.message,
                "operator": violation.operator,
                "location": str(violation.location) if violation.location else None,
                "remedy": violation.remedy,
            }
            for violation in self.violations
        ]
        return {**super().to_json(), "violations": violations}


class UsageError(DrainmarkError):
    """The command cannot be carried out as given; nothing was changed."""

    id = "USAGE"
    exit_code = 2
    retry = Retry.REFUSE


class ReplaceRefused(UsageError):
    """A file cannot be processed anew in the place of its earlier state: the region keeps state that counts it."""

    id = "REPLACE_REFUSED"


class RetractRefused(UsageError):
    """A file cannot be taken back out of the tables: an operator on the way keeps what cannot be subtracted."""

    id = "RETRACT_REFUSED"


class UnknownName(UsageError):
    """No application, region, table or operator of that name."""

    id = "UNKNOWN_NAME"


class HomeNotFound(UsageError):
    """No flag, environment variable or drainmark.toml says where DRAINMARK_HOME is."""

    id = "HOME_NOT_FOUND"


class RewindRefused(UsageError):
    """The target of a rewind is not an effective committed id within the horizon, or inputs above it are gone."""

    id = "REWIND_REFUSED"


class ForeignTable(DrainmarkError):
    """A table exists already, and Drainmark did not make it."""

    id = "FOREIGN_TABLE"
    exit_code = 2
    retry = Retry.REFUSE


class AdoptionRefused(DrainmarkError):
    """A table cannot be adopted: there is none, another region has it, or Drainmark could not keep its promises."""

    id = "ADOPTION_REFUSED"
    exit_code = 2
    retry = Retry.REFUSE


class RegistryLost(DrainmarkError):
    """The registry is empty and the checkpoint table is not: running would read everything again."""

    id = "REGISTRY_LOST"
    retry = Retry.REFUSE


class FormatTooNew(DrainmarkError):
    """The checkpoint table was written by a newer Drainmark."""

    id = "FORMAT_TOO_NEW"
    retry = Retry.REFUSE


class NotRowWise(DrainmarkError):
    """Two triggers together gave other rows than each trigger alone: the function is not row-wise."""

    id = "NOT_ROW_WISE"
    exit_code = 2
    retry = Retry.REFUSE


class SchemaMismatch(DrainmarkError):
    """The columns of an output differ from those of its table."""

    id = "SCHEMA_MISMATCH"
    retry = Retry.PERMANENT


class TooManyPartitions(DrainmarkError):
    """One group has rows of more partitions of a table than it may write to; smaller groups may have fewer."""

    id = "TOO_MANY_PARTITIONS"


class LayoutChanged(SchemaMismatch):
    """A table is partitioned by other columns than its sink says: that cannot change while it has rows."""

    id = "LAYOUT_CHANGED"


class StateIncompatible(SchemaMismatch):
    """An operator's state has other columns or keys than its code: going on would mix the two."""

    id = "STATE_INCOMPATIBLE"
    exit_code = 1


class InFlightLost(StateIncompatible):
    """Batches are in flight between two stages, and the new code is cut in other places."""

    id = "IN_FLIGHT_LOST"


class StatesMoved(DrainmarkError):
    """States were dropped, or a rewind brought them back, between reading the code and claiming the region."""

    id = "STATES_MOVED"
    retry = Retry.WAIT


class JavaMissing(DrainmarkError):
    """Spark needs a Java runtime and there is none."""

    id = "JAVA_MISSING"
    retry = Retry.REFUSE


# --- ownership of a region ---------------------------------------------------------------------------------------


class Fenced(DrainmarkError):
    """Another owner raised the epoch: nothing of this owner may be committed or written any more."""

    id = "FENCED"
    exit_code = 4
    retry = Retry.QUIET

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "another owner goes on, so a run has nothing to do; a command may be repeated",
        **facts: Any,
    ) -> None:
        super().__init__(message, remedy=remedy, **facts)

    def after(self, error: Exception) -> Fenced:
        """Return this error with the text of the one that it replaces, which may show a bug of the author's."""
        self.message = f"{self.message}; before that, {type(error).__name__}: {error}"
        return self


class Owned(DrainmarkError):
    """Another process that is alive owns the region."""

    id = "OWNED"
    exit_code = 4
    retry = Retry.QUIET


class Halted(DrainmarkError):
    """The region is halted and waits for an operator."""

    id = "HALTED"
    exit_code = 3
    retry = Retry.REFUSE


class Interrupted(DrainmarkError):
    """SIGINT, SIGTERM or Terminate: the group was abandoned; costs no attempt."""

    id = "INTERRUPTED"
    exit_code = 130
    retry = Retry.WAIT


class SplitBrain(DrainmarkError):
    """A managed table has changes of others, or a sink outside Delta is ahead of its region or behind it.

    Another program commits to the table, or one of them was restored from a backup without the others.
    """

    id = "SPLIT_BRAIN"
    retry = Retry.PERMANENT


class WriterBusy(DrainmarkError):
    """Another JVM writes to an adopted table on this disk; there, commits of two JVMs overwrite each other."""

    id = "WRITER_BUSY"
    exit_code = 4
    retry = Retry.WAIT


class TableRefused(DrainmarkError):
    """An adopted table does not take rows that are committed: its maker changed it since they were checked."""

    id = "TABLE_REFUSED"
    retry = Retry.PERMANENT


# --- failures while a group is processed -------------------------------------------------------------------------


class OperatorFailed(DrainmarkError):
    """User code or its Spark job failed; the cause is chained."""

    id = "OPERATOR_FAILED"


class SparkLost(DrainmarkError):
    """The Spark server or JVM under a run died or does not answer; a new attempt gets a new one."""

    id = "SPARK_LOST"
    retry = Retry.RENEW


class ConstraintViolated(DrainmarkError):
    """Rows break a constraint of the adopted table that they are for; found before anything is committed."""

    id = "CONSTRAINT_VIOLATED"
    retry = Retry.PERMANENT


class DrainTimeout(DrainmarkError):
    """One group took longer than group_timeout, its checkpoint included; its jobs were cancelled."""

    id = "DRAIN_TIMEOUT"


class ResetTimeout(DrainmarkError):
    """One reset took longer than reset_timeout."""

    id = "RESET_TIMEOUT"


class AccountingError(DrainmarkError):
    """Rows in differ from rows out plus quarantined rows, or other files were read than those of the group."""

    id = "ACCOUNTING"


class CommitOutcomeUnknown(DrainmarkError):
    """A commit raised and could not be read back either."""

    id = "COMMIT_OUTCOME_UNKNOWN"


class StoreUnavailable(DrainmarkError):
    """The store or the registry does not answer at the moment."""

    id = "STORE_UNAVAILABLE"
    retry = Retry.WAIT


class StoreRefused(DrainmarkError):
    """The object store denies access, or cannot be used with these settings; asking again gives the same answer."""

    id = "STORE_REFUSED"
    retry = Retry.PERMANENT


class ObjectMissing(DrainmarkError):
    """There is no object of that key."""

    id = "OBJECT_MISSING"


class ObjectChanged(DrainmarkError):
    """A condition on an object does not hold: it was replaced by another one, or it exists already."""

    id = "OBJECT_CHANGED"


class InputChanged(DrainmarkError):
    """A file changed after it was scanned."""

    id = "INPUT_CHANGED"
    retry = Retry.PERMANENT


class InputMissing(DrainmarkError):
    """A file that was scanned is gone."""

    id = "INPUT_MISSING"
    retry = Retry.PERMANENT


class SliceLost(DrainmarkError):
    """Input that a source gave before cannot be read again unchanged; no scan finds it again."""

    id = "SLICE_LOST"
    retry = Retry.PERMANENT


class SourceRewound(DrainmarkError):
    """A region read rows of another region's table, and a rewind of that region withdrew them."""

    id = "SOURCE_REWOUND"
    retry = Retry.PERMANENT


class ExpectationUnmet(DrainmarkError):
    """Rows of a file do not meet an expectation that halts the region; nothing of the file is committed."""

    id = "EXPECTATION_UNMET"
    retry = Retry.PERMANENT


class BadInput(DrainmarkError):
    """A file cannot be read in its declared format; reading it again cannot help."""

    id = "BAD_INPUT"
    retry = Retry.PERMANENT
