"""Deletion vectors in the format of Delta's protocol: which rows of a data file have left its table.

A vector is a set of row numbers, from 0: a `RoaringBitmapArray` in its portable form. Vectors are in files beside the
data files, each between its size and its CRC-32, and the log names file and offset. The other forms of the protocol,
inline and by absolute path, are not used here.
"""

from __future__ import annotations

import base64
import re
import struct
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import SplitBrain

if TYPE_CHECKING:
    from pyroaring import BitMap

IN_A_FILE = "u"
"""The type, in the log, of a vector in a file beside the data files."""

_PATH = re.compile(r"deletion_vector_[-0-9a-f]{36}\.bin")

_FILE_VERSION = b"\x01"
_NUMBER = struct.Struct(">I")
"""Size and checksum of a vector in its file."""

_HEAD, _KEY = struct.Struct("<IQ"), struct.Struct("<I")
"""Of a vector: a magic number and the number of bitmaps; before each bitmap, the upper 32 bits of its row numbers."""

_MAGIC = 1681511377
_Z85 = str.maketrans(
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
)
_FROM_Z85 = {other: own for own, other in _Z85.items()}
_UUID_LETTERS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionVector:
    """The place of one vector.

    Attributes:
        path: of its file, relative to the table's root.
        offset: of its size in the file, bytes.
        size: bytes, without size and checksum.
        rows: number of row numbers in it.
    """

    path: str
    offset: int
    size: int
    rows: int

    @classmethod
    def of_log(cls, value: Mapping[str, Any]) -> DeletionVector:
        """Return the vector that a descriptor of the log names.

        Raises:
            SplitBrain: another engine wrote it in a form that Drainmark does not use.
        """
        if value["storageType"] != IN_A_FILE:
            msg = f"another program marked rows of a file by a deletion vector of the type {value['storageType']!r}"
            raise SplitBrain(msg, remedy="make sure that only Drainmark writes to the table")
        text = value["pathOrInlineDv"]
        folder, name = text[:-_UUID_LETTERS], text[-_UUID_LETTERS:]
        number = uuid.UUID(bytes=base64.b85decode(name.translate(_FROM_Z85)))
        return cls(
            path=f"{folder}/{_name(number)}" if folder else _name(number),
            offset=value.get("offset") or 0,
            size=value["sizeInBytes"],
            rows=value["cardinality"],
        )

    def to_log(self) -> dict[str, Any]:
        """Return the descriptor for the log."""
        folder, _, name = self.path.rpartition("/")
        number = uuid.UUID(name.removeprefix("deletion_vector_").removesuffix(".bin"))
        return {
            "storageType": IN_A_FILE,
            "pathOrInlineDv": folder + base64.b85encode(number.bytes).decode().translate(_Z85),
            "offset": self.offset,
            "sizeInBytes": self.size,
            "cardinality": self.rows,
        }

    @property
    def span(self) -> tuple[int, int]:
        """Return where the vector, its size and its checksum begin and end in the file."""
        return self.offset, self.offset + self.size + 2 * _NUMBER.size

    def of_part(self, part: bytes) -> BitMap:
        """Return the row numbers, from the bytes of the file within `span`.

        Raises:
            ValueError: the file is damaged.
        """
        head, data, tail = part[: _NUMBER.size], part[_NUMBER.size : -_NUMBER.size], part[-_NUMBER.size :]
        if head != _NUMBER.pack(self.size) or len(data) != self.size:
            raise ValueError(f"{self.path} has no deletion vector of {self.size} bytes at {self.offset}")
        if tail != _NUMBER.pack(zlib.crc32(data)):
            raise ValueError(f"{self.path} is damaged: the checksum of its deletion vector at {self.offset} is wrong")
        return decoded(data)


def _name(number: uuid.UUID) -> str:
    return f"deletion_vector_{number}.bin"


def is_vector_file(name: str) -> bool:
    """Say whether a file beside the data files has deletion vectors, by its name."""
    return _PATH.fullmatch(name) is not None


def encoded(rows: Iterable[int]) -> bytes:
    """Return row numbers, in any order, as a vector; all are below 2**32, as those of every file of a table."""
    from pyroaring import BitMap

    bitmap = BitMap(rows)
    bitmap.run_optimize()
    return _HEAD.pack(_MAGIC, 1) + _KEY.pack(0) + bytes(bitmap.serialize())


def decoded(data: bytes) -> BitMap:
    """Return the row numbers of a vector.

    Raises:
        ValueError: it is none, or has numbers from 2**32 on.
    """
    from pyroaring import BitMap

    if len(data) < _HEAD.size or _HEAD.unpack_from(data)[0] != _MAGIC:
        raise ValueError("this is no deletion vector: it does not begin with the number of one")
    _, count = _HEAD.unpack_from(data)
    if count == 0:
        return BitMap()
    if count > 1 or _KEY.unpack_from(data, _HEAD.size)[0] != 0:
        raise ValueError("a deletion vector has row numbers from 2**32 on")
    return BitMap.deserialize(data[_HEAD.size + _KEY.size :])


def in_one_file(vectors: Iterable[bytes], counts: Sequence[int], number: str) -> tuple[bytes, list[DeletionVector]]:
    """Return the content of a file with some vectors, and their places.

    Args:
        counts: numbers of rows in the vectors.
        number: a UUID that no other file has, as 32 hexadecimal digits.
    """
    path, content, places = _name(uuid.UUID(number)), bytearray(_FILE_VERSION), []
    for data, rows in zip(vectors, counts, strict=True):
        places.append(DeletionVector(path=path, offset=len(content), size=len(data), rows=rows))
        content += _NUMBER.pack(len(data)) + data + _NUMBER.pack(zlib.crc32(data))
    return bytes(content), places
