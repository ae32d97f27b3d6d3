"""Docker's engine and the API of Kubernetes on loopback, as far as Dagster's executors and launchers ask for them.

A container is a process of this machine: it has the arguments and the variables that it was given, an empty folder as
its working directory, and nothing else of the environment of the test. There is no image and no isolation.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{{name: here, cluster: {{server: "{url}"}}}}]
users: [{{name: me, user: {{}}}}]
contexts: [{{name: here, context: {{cluster: here, user: me}}}}]
current-context: here
"""


@dataclass
class Container:
    """A process that was asked for.

    Attributes:
        command: its arguments.
        process: None until it is started.
    """

    name: str
    command: Sequence[str]
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def code(self) -> int | None:
        """Return its exit code; None before its end."""
        return self.process.poll() if self.process is not None else None


@dataclass
class Engine:
    """The containers that were made, in order.

    Attributes:
        url: of the server.
        folder: for the working directories and outputs of containers.
        variables: what an image would bring.
    """

    url: str
    folder: Path
    variables: dict[str, str]
    made: list[Container] = field(default_factory=list)

    def make(self, name: str, command: Sequence[str], environment: dict[str, str]) -> Container:
        found = Container(name, command, {**self.variables, **environment})
        self.made.append(found)
        return found

    def named(self, name: str) -> Container | None:
        return next((each for each in self.made if each.name == name), None)

    def start(self, container: Container) -> None:
        folder = self.folder / container.name
        folder.mkdir(parents=True)
        with (folder / "output").open("wb") as output:
            container.process = subprocess.Popen(
                container.command, cwd=folder, env=container.environment, stdout=output, stderr=subprocess.STDOUT
            )

    def output(self) -> str:
        """Return what all containers printed last."""
        return "\n".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("*/output")))


@contextmanager
def container_engine(folder: Path, *path: Path, **variables: str) -> Iterator[Engine]:
    """Serve an engine; at the end its containers are killed.

    Args:
        path: the folders of Python modules in the image, besides those of this interpreter.
        variables: more of the image's environment.
    """
    image = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": ":".join(map(str, path))}
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    engine = Engine(f"http://127.0.0.1:{server.server_port}", folder / "containers", {**image, **variables})
    server.engine = engine  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield engine
    finally:
        server.shutdown()
        server.server_close()
        for container in engine.made:
            if container.process is not None:
                container.process.kill()
                container.process.wait()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""

    def _answer(self, verb: str) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}") if length else {}
        path, _, query = self.path.partition("?")
        engine: Engine = self.server.engine  # type: ignore[attr-defined]
        answer = _kubernetes(engine, verb, path, body) if path.startswith("/api") else _docker(
            engine, verb, re.sub(r"^/v[0-9.]+", "", path), query, body
        )  # fmt: skip
        status, told = (404, {"message": f"{verb} {path}"}) if answer is None else answer
        text = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(0 if status == 204 else len(text)))
        self.end_headers()
        if status != 204:
            self.wfile.write(text)


_Answer = tuple[int, Any] | None


def _docker(engine: Engine, verb: str, path: str, query: str, body: dict[str, Any]) -> _Answer:
    if path == "/version":
        return 200, {"ApiVersion": "1.44", "MinAPIVersion": "1.24"}
    if path == "/containers/create":
        name = parse_qs(query).get("name", [f"container-{len(engine.made)}"])[0]
        made = engine.make(name, body["Cmd"], dict(each.split("=", 1) for each in body.get("Env") or ()))
        return 201, {"Id": made.name, "Warnings": []}
    _, _, name, what = [*path.split("/"), "", "", ""][:4]
    found = engine.named(name)
    return _of_container(engine, found, what) if found is not None else None


def _of_container(engine: Engine, found: Container, what: str) -> _Answer:
    if what == "start":
        engine.start(found)
    elif what == "json":
        status = "created" if found.process is None else "running" if found.code is None else "exited"
        return 200, {"Id": found.name, "Name": f"/{found.name}", "State": {"Status": status}, "Config": {"Image": "x"}}
    elif found.process is None:
        return None
    elif what == "wait":
        code = found.process.wait()
        return 200, {"StatusCode": code if code >= 0 else 128 - code}
    elif what == "stop":
        found.process.send_signal(signal.SIGTERM)
    else:
        return None
    return 204, None


def _kubernetes(engine: Engine, verb: str, path: str, body: dict[str, Any]) -> _Answer:
    if path.startswith("/api/v1/") and path.endswith("/pods"):
        return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []}
    if verb == "POST" and path.endswith("/jobs"):
        (asked,) = body["spec"]["template"]["spec"]["containers"]
        variables = {each["name"]: each["value"] for each in asked.get("env") or () if "value" in each}
        engine.start(engine.make(body["metadata"]["name"], asked["args"], variables))
        return 201, body
    found = engine.named(path.removesuffix("/status").rpartition("/")[2])
    if found is None:
        return None
    if verb == "DELETE" and found.process is not None:
        found.process.send_signal(signal.SIGTERM)
    told = {"active": 1} if found.code is None else {"failed": 1} if found.code else {"succeeded": 1}
    return 200, {"kind": "Job", "apiVersion": "batch/v1", "metadata": {"name": found.name}, "status": told}
