"""Another user of this machine, who reaches every port of the loopback and knows no secret."""

from __future__ import annotations

import socket
import struct
from concurrent.futures import ThreadPoolExecutor

import psutil

_PATIENCE_SECONDS = 2.0
_OBJECT = b"\xac\xed\x00\x05t\x00\x05hello"
"""A text as Java serialises it."""
REFUSALS = (
    b"Expected SaslMessage",  # Spark's own transport: it says this before it reads a message
    b"\x00\x00\x12\x04\x00\x00\x00\x00\x00",  # gRPC's greeting, without an answer to what is no HTTP/2
    b"!",  # the gateway of Py4J
    b"\x00\x00\x00\x03err",  # a Python worker, after what forks it has told its pid
)


def _text(text: bytes) -> bytes:
    return struct.pack(">H", len(text)) + text


def _long_text(text: bytes) -> bytes:
    return struct.pack(">i", len(text)) + text


def _request(body: bytes) -> bytes:
    """Return a frame of Spark's transport with a request in it."""
    frame = struct.pack(">bqi", 3, 42, len(body)) + body
    return struct.pack(">q", len(frame) + 8) + frame


def messages(port: int) -> dict[str, bytes]:
    """Return messages that a port may deserialise or carry out: to Spark's RPC, to its block transfer, to Py4J."""
    receiver = b"\x00\x01" + _text(b"127.0.0.1") + struct.pack(">i", port) + _text(b"endpoint-verifier")
    upload = b"\x01" + b"".join(map(_long_text, (b"app", b"executor", b"test_block", _OBJECT[4:], b"")))
    return {
        "rpc": _request(receiver + _OBJECT),
        "block": _request(upload),
        "py4j": b"i\njava.lang.Object\ne\n",
    }


def heard(port: int, message: bytes) -> bytes:
    """Return the answer of a port to a message; empty if it closes the connection or says nothing."""
    with socket.create_connection(("127.0.0.1", port), _PATIENCE_SECONDS) as stranger:
        stranger.settimeout(_PATIENCE_SECONDS)
        stranger.sendall(message)
        try:
            return stranger.recv(65536)
        except (TimeoutError, ConnectionError):
            return b""


def listening(process: psutil.Process) -> list[int]:
    """Return the TCP ports on which a process takes connections: none, if it has ended."""
    try:
        found = process.net_connections(kind="tcp")
    except psutil.NoSuchProcess:  # Spark ends Python workers of its own accord, also between the listing and this
        return []
    return sorted({each.laddr.port for each in found if each.status == psutil.CONN_LISTEN})


def conversations(process: psutil.Process) -> dict[tuple[int, str], bytes]:
    """Send each message to each port of a process; return the answers that are no refusals."""
    asked = [(port, name, message) for port in listening(process) for name, message in messages(port).items()]
    with ThreadPoolExecutor(max(len(asked), 1)) as pool:
        said = list(pool.map(lambda each: heard(each[0], each[2]), asked))
    answers = {(port, name): answer for (port, name, _), answer in zip(asked, said, strict=True)}
    return {key: answer for key, answer in answers.items() if not _refuses(answer)}


def _refuses(answer: bytes) -> bool:
    is_pid = len(answer) == 4  # of a Python worker that was forked, and now waits for the secret
    return not answer or is_pid or any(each in answer for each in REFUSALS)
