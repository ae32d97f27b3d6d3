"""Places where a run can be made to fail on purpose: part of the product, off by default, free when off.

Every step of the protocol has one. `DRAINMARK_FAILPOINTS="checkpoint.after_commit:kill:2"` arms a
point for its second passing; several are separated by commas. Actions: `raise`, `kill` (SIGKILL to this process),
`stop` (SIGSTOP), `lost_reply` (raise after the commit is made: the caller must find that out), `hang=SECONDS`.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum

from drainmark.jobs import world
from drainmark.jobs.world import World

ENVIRONMENT = "DRAINMARK_FAILPOINTS"


class FailPoint(StrEnum):
    """The steps of the protocol; commits have a point before and after."""

    CLAIM_BEFORE = "claim.before_commit"
    CLAIM_AFTER = "claim.after_commit"
    ROLL_FORWARD = "roll_forward.before"
    SLICE_BEFORE = "slice.before"
    SLICE_LISTED = "slice.listed"
    SLICE_NOTED = "slice.noted"
    SEAL_BEFORE = "segment.before_seal"
    SEAL_AFTER = "segment.after_seal"
    PURGE_BEFORE = "segment.before_purge"
    PURGE_AFTER = "segment.after_purge"
    ASSIGN_BEFORE = "assign.before"
    ASSIGN_AFTER = "assign.after"
    PROCESS_BEFORE = "process.before"
    FEED_BEFORE = "feed.before"
    FEED_AFTER = "feed.after"
    PROCESS_STAGED = "process.staged"
    DRAIN = "drain.before"
    CHECKPOINT_PENDING = "checkpoint_pending.before"
    CHECKPOINT_PENDING_WRITTEN = "checkpoint_pending.written"
    CHECKPOINT_BEFORE = "checkpoint.before_commit"
    CHECKPOINT_AFTER = "checkpoint.after_commit"
    PROGRESS_BEFORE = "progress.before_commit"
    PROGRESS_AFTER = "progress.after_commit"
    PUBLISH_BEFORE = "publish.before_commit"
    PUBLISH_AFTER = "publish.after_commit"
    SEND_BEFORE = "send.before_commit"
    SEND_AFTER = "send.after_commit"
    RESUME_BEFORE = "resume.before"
    RESUME_AFTER = "resume.after"
    REWIND_BEFORE = "rewind.before_commit"
    REWIND_AFTER = "rewind.after_commit"
    REWIND_TABLE_BEFORE = "rewind_table.before_commit"
    REWIND_TABLE_AFTER = "rewind_table.after_commit"
    NOTE_BEFORE = "note.before_commit"
    NOTE_AFTER = "note.after_commit"
    REPAIR_BEFORE = "repair.before_commit"
    REPAIR_AFTER = "repair.after_commit"
    COMPACT_BEFORE = "compact.before_commit"
    COMPACT_AFTER = "compact.after_commit"
    RELEASE_BEFORE = "release.before"


class StorePoint(StrEnum):
    """The steps of a two-level store; only regions that keep handlers' checkpoints there pass them."""

    CHUNKS_BEFORE = "chunks.before"
    CHUNKS_WRITTEN = "chunks.written"
    CHUNKS_AFTER = "chunks.after"
    RETIRE_BEFORE = "retire.before"
    PAIR_BEFORE = "pair.before_write"  # of each pair, several of which are written side by side


class ChannelPoint(StrEnum):
    """The steps of channels; only regions of several stages pass them."""

    SPOOL_BEFORE = "spool.before"
    SPOOL_WRITTEN = "spool.written"
    HAND_OVER_BEFORE = "hand_over.before"  # a stage's rows of a group are staged, and no other stage has them yet
    HAND_OVER_AFTER = "hand_over.after"


class FilePoint(StrEnum):
    """The steps of single files beside the commits: they are put in place whole, and moved after use."""

    WRITTEN = "file.written"
    COPIED = "dispose.copied"


class SourcePoint(StrEnum):
    """The steps that only some sources pass: they report their position to others, and go on behind lost input."""

    GROUP_BEFORE = "offsets.before_commit"
    GROUP_AFTER = "offsets.after_commit"
    LOSS_BEFORE = "loss.before"
    LOSS_NOTED = "loss.noted"
    LOSS_PASSED = "loss.passed"


class DropPoint(StrEnum):
    """The steps of dropping tables that left the code; only the verb passes them, and an owner that finishes it."""

    NOTED = "drop.noted"
    LOG_GONE = "drop.log_gone"
    DELETED = "drop.deleted"


class ErasePoint(StrEnum):
    """The steps of an erasure, which only `drainmark erase` passes."""

    NOTED = "erase.noted"
    BEFORE = "erase.before_commit"
    AFTER = "erase.after_commit"
    SINK = "erase.sink"
    LOG = "erase.log"
    PURGED = "erase.purged"


OF_AUTONOMOUS = tuple(point for point in FailPoint if point.value.startswith(("feed.", "send.")))
"""Points that only an application with autonomous operators passes."""

OF_STAGES = (FailPoint.PROGRESS_BEFORE, FailPoint.PROGRESS_AFTER)
"""Points that only a region of several stages with unaligned states passes."""

COMMITS = tuple(point for point in FailPoint if point.value.endswith("_commit"))
"""Points around a Delta commit; those after one can lose the reply."""


class InjectedFailure(RuntimeError):
    """The error that an armed fail point raises."""


@dataclass(slots=True)
class _ArmedPoint:
    action: str
    passings: int


class Armed(World):
    """The plain world, in which armed points act."""

    def pass_point(self, point: str) -> None:
        """Act if the point is armed and this is its passing."""
        action = None
        with _lock:
            for armed in _armed.get(str(point), []):
                armed.passings -= 1
                if armed.passings == 0:
                    action = armed.action
        if action is not None:
            _act(str(point), action)

    def whole(self) -> AbstractContextManager[object]:
        """Return a lock: `stop` waits until every thread has left its transaction.

        A process stopped with SQLite's write lock never releases it, and no other process could take over its regions.
        """
        return _whole


_ARMED = Armed()
_KINDS: tuple[type[StrEnum], ...] = (FailPoint, StorePoint, FilePoint, ChannelPoint, SourcePoint, DropPoint, ErasePoint)
_armed: dict[str, list[_ArmedPoint]] = {}
_ACTION = re.compile(r"kill|stop|raise|lost_reply|hang(=[0-9]+(\.[0-9]*)?|=\.[0-9]+)?")
_PASSING = re.compile(r"[1-9][0-9]*")
_lock = threading.Lock()
_whole = threading.RLock()
_STOP_SECONDS = 0.05
"""The signal may stop another thread first, and this one a moment later."""


def arm(specification: str) -> None:
    """Arm points from a text such as `publish.after_commit:kill:2,drain.before:raise`; an empty text disarms all.

    The process is in the world `Armed` while a point is armed.

    Raises:
        ValueError: an item is not POINT:ACTION or POINT:ACTION:PASSING; names the legal values. Nothing is armed then.
    """
    items = [_item(text) for text in specification.split(",") if text]
    with _lock:
        _armed.clear()
        for name, armed in items:
            _armed.setdefault(name, []).append(armed)
    if items:
        world.enter(_ARMED)
    else:
        world.leave(_ARMED)


def _item(text: str) -> tuple[str, _ArmedPoint]:
    name, _, rest = text.partition(":")
    action, has_passing, passing = rest.partition(":")
    points = [point.value for kind in _KINDS for point in kind]
    if name not in points:
        msg = f"{name!r} is no fail point; known: {', '.join(points)}"
    elif not _ACTION.fullmatch(action):
        msg = f"fail point {name} has no action {action!r}; known: kill, stop, raise, lost_reply, hang=SECONDS"
    elif has_passing and not _PASSING.fullmatch(passing):
        msg = f"fail point {name} has no passing {passing!r}; it is a number from 1 on"
    else:
        return name, _ArmedPoint(action, int(passing or 1))
    raise ValueError(msg)


def unreached() -> tuple[str, ...]:
    """Return the armed points that have not acted yet: after a run, those that it did not pass, or not often enough."""
    with _lock:
        return tuple(point for point, items in _armed.items() if any(item.passings > 0 for item in items))


def arm_from_environment() -> None:
    """Arm the points that the environment names; called once by an entry point that owns the process."""
    arm(os.environ.get(ENVIRONMENT, ""))


def _act(point: str, action: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        with _whole:
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(_STOP_SECONDS)
    elif action.startswith("hang"):
        time.sleep(float(action.partition("=")[2] or "3600"))
    else:
        msg = f"injected {action} at {point}"
        raise InjectedFailure(msg)
