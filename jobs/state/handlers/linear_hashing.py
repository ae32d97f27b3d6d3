"""The bucket of a key, by linear hashing: a table grows by one bucket, which is split off from another one."""

from __future__ import annotations

import zlib


def place_of(key: object, count: int) -> int:
    """Return a key's bucket out of `count`: that of the doubled table if it exists, else the one it splits from."""
    number = stable_hash(key)
    mask = (1 << (count - 1).bit_length()) - 1
    place = number & mask
    return place if place < count else place & (mask >> 1)


def bucket_to_split(count: int) -> int:
    """Return the bucket that gives about half of its keys to the next new bucket, if there are `count` buckets."""
    return count - (1 << (count.bit_length() - 1))


def stable_hash(key: object) -> int:
    """Return a hash that is the same in every process for texts, bytes, numbers and tuples of them."""
    if isinstance(key, str):
        return zlib.crc32(key.encode("utf-8", "surrogatepass"))
    if isinstance(key, bytes):
        return zlib.crc32(key)
    if isinstance(key, tuple):
        return zlib.crc32(repr([stable_hash(item) for item in key]).encode())
    number = 0 if key is None else hash(key)
    return (number ^ (number >> 16)) * 0x9E3779B1 & 0xFFFFFFFF
