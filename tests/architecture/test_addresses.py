"""The repository runs anywhere: no path of one machine, no address of a registry, no host except the local one."""

from __future__ import annotations

import ipaddress
import re

from architecture.tree import ROOT, product_files, relative, text_files

MACHINE_PATH = re.compile(r"(?<![\w.*}/-])/(?:home|root|Users|work|mnt|media)/\w+")
WEB_ADDRESS = re.compile(r"https?://([^/\s\"'`)>:]+)")
IP_ADDRESS = re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])")
TEMPORARY = re.compile(r"[\"']/tmp\b")
LOCAL_HOSTS = {"127.0.0.1", "localhost", "s3", "kubernetes.default.svc"}
"""`s3` is a service of deploy/compose.yaml, the last one of every Kubernetes; only their containers know them."""
DOCUMENTATION_HOSTS = (".example", "example.com", "example.org", "example.net")
DOCUMENTATION_NETWORKS = [
    ipaddress.ip_network(network)
    for network in ("127.0.0.0/8", "0.0.0.0/32", "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")
]


def _may_be_named(host: str) -> bool:
    return host in LOCAL_HOSTS or host.endswith(DOCUMENTATION_HOSTS) or "{" in host


def test_no_file_names_a_path_of_a_machine() -> None:
    found = []
    for path in text_files():
        text = path.read_text()
        found += [f"{relative(path)}: {match.group()}" for match in MACHINE_PATH.finditer(text)]
        if len(ROOT.parts) > 2 and str(ROOT) in text:
            found.append(f"{relative(path)}: {ROOT}")
    assert not found


def test_no_file_names_a_web_address() -> None:
    found = [
        f"{relative(path)}: {match.group()}"
        for path in text_files()
        for match in WEB_ADDRESS.finditer(path.read_text())
        if not _may_be_named(match.group(1))
    ]
    assert not found


def test_the_lock_names_versions_and_hashes_and_no_address() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    assert not re.search(r"^\s*-(?!-hash=sha256:)", lock, re.MULTILINE), "an option of pip in the lock"
    pinned = re.findall(r"^[a-z0-9][\w.\[\]-]*==\S+", lock, re.MULTILINE)
    assert len(pinned) > 50
    assert "--index-url" not in (ROOT / "Makefile").read_text()


def test_the_product_names_no_address_and_no_temporary_folder() -> None:
    found = []
    for path in product_files():
        text = path.read_text()
        found += [f"{relative(path)}: {match.group()}" for match in TEMPORARY.finditer(text)]
        for match in IP_ADDRESS.finditer(text):
            address = ipaddress.ip_address(match.group())
            if not any(address in network for network in DOCUMENTATION_NETWORKS):
                found.append(f"{relative(path)}: {address}")
    assert not found
