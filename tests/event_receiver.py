"""A receiver of events on loopback: it keeps what is posted, and judges OpenLineage events by the published schemas."""

from __future__ import annotations

import json
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012
from waiting import SOON

from drainmark.orchestration.exporters import event_sender, lineage, telemetry

_HERE = Path(__file__).parent
OWN_FACETS = _HERE.parent / "docs" / "how-to" / "openlineage-facets.json"


@dataclass
class EventReceiver:
    """What a receiver got.

    Attributes:
        posted: path and body of each request that it took, in order.
        refuses: the status of its answers, 200 to take what is posted.
        refuses_if: says of a body whether it is answered so.
        says: the text of its answers.
        patience: the header `Retry-After` of its answers.
        location: the place to which its answers redirect.
        hangs: it answers nothing until this is set again.
        tokens: the header `Authorization` of each request.
    """

    url: str = ""
    posted: list[tuple[str, bytes]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    refuses: int = 200
    refuses_if: Callable[[bytes], bool] = lambda body: True
    says: str = ""
    patience: str = ""
    location: str = ""
    hangs: threading.Event = field(default_factory=threading.Event)
    asked: int = 0

    @property
    def events(self) -> list[dict[str, Any]]:
        """Return the OpenLineage events, each judged."""
        found = [json.loads(body) for path, body in self.posted if path == "/api/v1/lineage"]
        for event in found:
            judge(event)
        return found

    def of(self, kind: str, job: str = "") -> list[dict[str, Any]]:
        """Return the events of a kind whose job's name ends so."""
        return [each for each in self.events if each["eventType"] == kind and each["job"]["name"].endswith(job)]


@contextmanager
def receiving() -> Iterator[EventReceiver]:
    """Yield a receiver that listens."""
    got = EventReceiver()
    got.hangs.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.asked += 1
            got.hangs.wait()
            status = got.refuses if got.refuses_if(body) else 200
            if status == 200:
                got.posted.append((self.path, body))
                got.tokens.append(self.headers.get("Authorization"))
            self.send_response(status)
            for name, value in (("Location", got.location), ("Retry-After", got.patience)):
                if value:
                    self.send_header(name, value)
            said = got.says.encode() if status != 200 else b""
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def do_GET(self) -> None:
            got.asked += 1
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True)
    thread.start()
    got.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield got
    finally:
        got.hangs.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[EventReceiver]:
    """Yield a receiver that nobody gives up because the machine is busy, nor tries again too soon."""
    for told in (lineage, telemetry):
        monkeypatch.setattr(told, "END_SECONDS", SOON)
        monkeypatch.setattr(told, "SEND_SECONDS", SOON)
    monkeypatch.setattr(event_sender, "REST_SECONDS", SOON)
    with receiving() as got:
        yield got


def judge(event: Mapping[str, Any]) -> None:
    """Raise `jsonschema.ValidationError` unless an event, and each of its facets, obeys the schema that it names."""
    _validator(event["schemaURL"]).validate(event)
    for facet in facets_of(event):
        _validator(facet["_schemaURL"]).validate(facet)


def facets_of(event: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield all facets of an event."""
    places = [event["run"], event["job"], *event["inputs"], *event["outputs"]]
    for place in places:
        for name in ("facets", "inputFacets", "outputFacets"):
            yield from (place.get(name) or {}).values()


@cache
def _validator(schema_url: str) -> Any:
    file, _, part = schema_url.partition("#")
    schemas, registry = _schemas()
    name = file.rpartition("/")[2]
    assert name in schemas, f"no schema is known for {schema_url}"
    reference = {"$ref": f"{schemas[name]['$id']}#{part}"}
    return Draft202012Validator(reference, registry=registry, format_checker=FormatChecker())


@cache
def _schemas() -> tuple[dict[str, Any], Any]:
    """Return the schemas by name of the file, and by address."""
    found: dict[str, Any] = {}
    with tarfile.open(_HERE / "schemas" / "openlineage.tar.xz") as packed:
        for member in packed:
            if member.name.endswith(".json") and (file := packed.extractfile(member)) is not None:
                found[member.name.rpartition("/")[2]] = json.load(file)
    own = json.loads(OWN_FACETS.read_text())
    found[own["$id"].rpartition("/")[2]] = own
    resources = [(schema["$id"], Resource.from_contents(schema, DRAFT202012)) for schema in found.values()]
    return found, Registry().with_resources(resources)
