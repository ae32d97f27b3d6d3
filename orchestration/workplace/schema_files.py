"""Schemas that the code does not declare: inferred once, from the first files of a source, and then held by a file.

`schemas/APP.SOURCE.ddl` beside the application holds the columns of a source without `schema=`. If it does not exist
yet, every process that opens the application infers the columns from the files in the source's folder. A run or a scan
first writes them to the file, and then they are never inferred again. The file is code, like the application: it may be
edited, and belongs under version control.
"""

from __future__ import annotations

import io
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from drainmark.jobs import world
from drainmark.jobs.errors import ObjectChanged, ObjectMissing, StoreUnavailable, UsageError
from drainmark.jobs.errors.environment import SchemaUnknown
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.protocol.records.addresses import is_object

if TYPE_CHECKING:
    from drainmark.jobs.formats.column_fit import Columns
    from drainmark.jobs.graph.application import Application
    from drainmark.jobs.graph.operator import Operator
    from drainmark.jobs.protocol.records.triggers import NewTrigger
    from drainmark.resources.inputs.inputs import Inputs
    from drainmark.resources.settings import Settings

FOLDER, SUFFIX = "schemas", ".ddl"
SAMPLE_FILES = 10
_PATIENCE_SECONDS = 10.0
"""The longest wait until a first file is settled: meanwhile others wait for the application to be opened."""
_BUFFER_BYTES = 1024 * 1024
_COMMENT = "--"
_TOLD = 5
"""Columns of which a notice says why they are texts; of further ones it says how many."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaFile:
    """The file that holds the columns of an output, and these columns.

    Attributes:
        stream: of the output.
        region: the region that begins with the source.
        ddl: the columns, one per line.
        inferred_from: the first of the files; "" if the columns were read from `path`.
        texts: name of a column that was taken for a text -> why, if it may be meant otherwise.
    """

    path: Path
    stream: str
    region: str
    ddl: str
    inferred_from: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)


def with_schemas(application: Application, settings: Settings | None) -> tuple[Application, Sequence[SchemaFile]]:
    """Return the application with a held or inferred schema for each source without one, and these schemas.

    Args:
        settings: give the place of the input; without them nothing is inferred.

    Raises:
        SchemaUnknown: there is no such file, and no input from which to infer the columns.
        StoreUnavailable: a bucket does not answer, or its objects changed a moment ago.
        UsageError: a file cannot be read.
    """
    operators: list[Operator] = []
    found: list[SchemaFile] = []
    for operator in application.operators:
        if isinstance(operator, DirectorySource) and application.origin and (lacking := _lacking(operator)):
            files = [file for output in lacking if (file := _file(application, operator, output, settings)) is not None]
            operators.append(_declaring(operator, files))
            found += files
        else:
            operators.append(operator)
    return (replace(application, operators=tuple(operators)), found) if found else (application, found)


def keep_schemas(files: Sequence[SchemaFile], has_states: Callable[[str], bool] = lambda region: False) -> None:
    """Write the schemas that were inferred when an application was opened to their files, before it is run.

    Args:
        has_states: returns whether a region has committed states: then its columns were known before.

    Raises:
        UsageError: a file cannot be written (the remedy says what to declare instead), others wrote other columns
            meanwhile, or the file of a region with states is gone.
    """
    for file in files:
        if not file.inferred_from:
            continue
        if has_states(file.region):
            msg = f"{file.path}, which holds the columns of {file.stream}, is gone, and {file.region} has states"
            raise UsageError(msg, remedy=f'put it back, or declare the columns: schema="{" ".join(file.ddl.split())}"')
        part = file.path.with_name(f".{file.path.name}.{world.token()}")
        try:
            file.path.parent.mkdir(exist_ok=True)
            part.write_text(_text(file), encoding="utf-8")
            os.link(part, file.path)  # a rename would replace the file of another writer
            told = "".join(_told(file.texts))
            logger.warning(f"{file.stream}: columns inferred from {file.inferred_from}, kept in {file.path}{told}")
        except FileExistsError:
            if _read(file.path) != file.ddl:
                msg = f"{file.path} was written a moment ago, with other columns than were inferred here"
                raise UsageError(msg, remedy="run it again: the file holds") from None
        except OSError as error:
            msg = f"{file.path}, which is to hold the columns of {file.stream}, cannot be written: {error.strerror}"
            raise UsageError(msg, remedy=f'declare them: schema="{" ".join(file.ddl.split())}"') from error
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)


def _told(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield which columns became texts, and why, each behind a semicolon."""
    yield from (f"; {name[:64]} is text: {why}" for name, why in itertools.islice(texts.items(), _TOLD))
    if len(texts) > _TOLD:
        yield f"; and {len(texts) - _TOLD} more"


def _lacking(source: DirectorySource) -> Sequence[str]:
    """Return the outputs without a schema, if the format of the source's files tells their columns."""
    scan = source.scan
    return [output for output in source.outputs if scan.says_columns and not scan.schema_of(output)]


def _declaring(source: DirectorySource, files: Sequence[SchemaFile]) -> DirectorySource:
    ddl = {file.stream: file.ddl for file in files}
    schemas = {output: ddl.get(source.stream(output)) or source.scan.schema_of(output) for output in source.outputs}
    known = {output: schema for output, schema in schemas.items() if schema}
    return replace(source, scan=replace(source.scan, schema=known if source.scan.outputs else known.get("")))


def _file(
    application: Application, source: DirectorySource, output: str, settings: Settings | None
) -> SchemaFile | None:
    """Return the file of an output, existing or still to be written; None if that needs settings and there are none."""
    name = ".".join(_part(part) for part in (application.name, source.name, output) if part)
    path = Path(application.origin).resolve().parent / FOLDER / f"{name}{SUFFIX}"
    ddl, region = _read(path) if path.exists() else "", f"{application.name}/{source.name}"
    file = SchemaFile(path=path, stream=source.stream(output), region=region, ddl=ddl)
    if file.ddl or settings is None:
        return file if file.ddl else None
    from drainmark.jobs.formats.inference import ColumnsUnclear, Inferred, columns_of
    from drainmark.resources.inputs.inputs import inputs_of

    inputs = inputs_of(settings)
    folder = source.scan.path if is_object(source.scan.path) else str(settings.project_root / source.scan.path)
    first = _first_files(inputs, folder, source, output)
    found: Inferred | None = None
    why = "there is no file yet"
    try:
        found = columns_of(_opened(inputs, first), source.scan.expects(None))
    except ColumnsUnclear as error:
        why = str(error) if first else why
    except (OSError, ObjectMissing, ObjectChanged) as error:
        if isinstance(error, OSError) and not is_object(folder):
            raise
        msg = f"the first files of {folder}, which say the columns of {source.stream(output)}, cannot be read: {error}"
        raise StoreUnavailable(
            msg, operator=source.name, location=source.location, remedy="try again; look at the store if it stays so"
        ) from error
    if found is None:
        raise SchemaUnknown(
            f"{source.stream(output)} has no schema, and none can be inferred from {folder}: {why}",
            operator=source.name,
            location=source.location,
            remedy=f'put a first file there, or write {path}, or declare schema="id bigint, …"',
        )
    below = f"{settings.project_root}/"  # a file under version control must not name folders of one machine
    return replace(file, ddl=_ddl(found.columns), inferred_from=first[0].uri.removeprefix(below), texts=found.texts)


def _part(name: str) -> str:
    """Return a name as a part of a file name; different names give different parts."""
    return re.sub(r"[/.%]", lambda found: f"%{ord(found[0]):02X}", name)


# --- the first files ------------------------------------------------------------------------------------------------


def _first_files(inputs: Inputs, folder: str, source: DirectorySource, output: str) -> Sequence[NewTrigger]:
    """Return the files that a first scan would put first."""
    if not inputs.is_there(folder):
        return ()
    found = inputs.scan(folder, source.scan, {}, now=world.now())
    if found.unsettled and not found.new and source.scan.settle <= _PATIENCE_SECONDS:
        world.sleep(source.scan.settle)
        found = inputs.scan(folder, source.scan, {}, now=world.now())
    return [trigger for trigger in found.new if trigger.output == output][:SAMPLE_FILES]


def _opened(inputs: Inputs, files: Sequence[NewTrigger]) -> Iterator[tuple[BinaryIO, str]]:
    """Yield each file, open until the next one is asked for, and the ending that tells its compression."""
    from drainmark.jobs.formats.lines.content import SeekableData
    from drainmark.jobs.runtime.input.inbox import ending_of
    from drainmark.jobs.scan.folder import path_of

    for file in files:
        if not is_object(file.uri):
            with open(path_of(file.uri), "rb") as opened:
                yield opened, ending_of(file.uri)
        elif stored := inputs.stored([file]):
            yield io.BufferedReader(SeekableData(stored[0]), _BUFFER_BYTES), ending_of(file.uri)


# --- the file that holds --------------------------------------------------------------------------------------------


def _ddl(columns: Columns) -> str:
    from drainmark.jobs.formats.file_columns import sql_of
    from drainmark.jobs.frames.names import quoted_name

    named = (
        (name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else quoted_name(name), kind) for name, kind in columns
    )
    return ",\n".join(f"{name} {sql_of(kind)}" for name, kind in named)


def _text(file: SchemaFile) -> str:
    return (
        f"{_COMMENT} The columns of {file.stream}, inferred from {file.inferred_from} and files like it.\n"
        f"{_COMMENT} Nobody infers them again: edit them here, and keep this file under version control.\n"
        f"{file.ddl}\n"
    )


def _read(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", remedy="it holds columns as DDL, in UTF-8") from error
    ddl = "\n".join(line for line in lines if line.strip() and not line.lstrip().startswith(_COMMENT))
    if not ddl:
        raise UsageError(f"{path} has no columns", remedy="write some as DDL, or delete it to have them inferred")
    return ddl
