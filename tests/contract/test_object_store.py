"""The S3 client against an S3 server, and against a proxy that answers wrongly (D13–D17, Z5)."""

from __future__ import annotations

import sys
import traceback
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote

import canary
import pytest
from fault_proxy import Fault, FaultProxy, fault_proxy

from drainmark.jobs.errors import DrainmarkError, Retry, StoreRefused, StoreUnavailable
from drainmark.jobs.tasks.bucket_clients import Patience
from drainmark.resources.settings import Settings
from drainmark.resources.storage.object_errors import redacted
from drainmark.resources.storage.object_store import ObjectStore, object_store

pytestmark = pytest.mark.usefixtures("s3_credentials")

NAMES = [f"in/{number:04d}" for number in range(1200)]
WEB = "https"
ODD_PATH = pytest.param("x//y", marks=canary.only_with_moto("it keeps a tree of folders: no name is empty"))


@pytest.fixture(scope="module")
def full(s3_server: str) -> str:
    """Return the name of a bucket with more keys than a page holds."""
    name = f"s3://full-{uuid.uuid4().hex[:12]}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", canary.ACCESS_KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", canary.SECRET)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        store = ObjectStore(s3_server)
        store.connection.client.create_bucket(Bucket=name.removeprefix("s3://"))
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: store.put(name, key, b""), [*NAMES, "in/0500.d/below", "out"]))
    return name


@pytest.fixture
def proxy(s3_server: str, store: ObjectStore) -> Iterator[FaultProxy]:
    with fault_proxy(s3_server) as served:
        yield served


def through(proxy: FaultProxy, attempts: int = 2, *, seconds: float = 30.0) -> ObjectStore:
    """Return a client that gives up a request after so many seconds: an answer takes a busy server a while."""
    return ObjectStore(proxy.url, patience=Patience(seconds, seconds, retries=attempts - 1))


def keys(store: ObjectStore, bucket: str, prefix: str = "", **arguments: bool | str) -> list[list[str]]:
    return [[facts.key for facts in page] for page in store.pages(bucket, prefix, **arguments)]  # type: ignore[arg-type]


# --- requests that succeed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["a b", "%41%", "ü/ß", "[1]{2}*?", "_x", ".x", "a:b", "a+b&c=d#e", "日本", "a\\b", "~a", ODD_PATH]
)
def test_odd_keys_are_keys(store: ObjectStore, bucket: str, tmp_path: Path, key: str) -> None:
    etag = store.put(bucket, key, b"1")
    assert keys(store, bucket) == [[key]]
    store.fetch(bucket, key, tmp_path / "copy", etag=etag, size=1)
    assert (tmp_path / "copy").read_bytes() == b"1"


@pytest.mark.seed("RT4")
def test_a_link_in_the_place_of_a_copy_leads_nowhere(store: ObjectStore, bucket: str, tmp_path: Path) -> None:
    etag = store.put(bucket, "in/a.txt", b"one\ntwo\n")
    (tmp_path / "other").write_text("of somebody else")
    (tmp_path / "copy").symlink_to(tmp_path / "other")
    with pytest.raises(StoreUnavailable):
        store.fetch(bucket, "in/a.txt", tmp_path / "copy", etag=etag, size=8)
    assert (tmp_path / "other").read_text() == "of somebody else"


def test_pages_go_on_behind_the_last_key(full: str, s3_server: str) -> None:
    """Each request for a page names the last key of the page before. `recursive` includes or omits subfolders."""
    with fault_proxy(s3_server) as proxy:
        listing = keys(through(proxy), full, "in/", recursive=False)
    assert [len(page) for page in listing] == [999, 201]  # the page's thousandth entry is the folder
    assert [key for page in listing for key in page] == NAMES
    asked = [unquote(request) for request in proxy.seen]
    assert "start-after=" not in asked[0]
    assert "start-after=in/0998" in asked[1]
    store = ObjectStore(s3_server)
    assert [key for page in keys(store, full, "in/") for key in page] == sorted([*NAMES, "in/0500.d/below"])
    assert keys(store, full, "in/", start_after="in/1197") == [["in/1198", "in/1199"]]


@pytest.mark.seed("D15")
def test_one_key_that_a_server_alters_hides_no_other(full: str, s3_server: str) -> None:
    """A page of a thousand keys begins with one that comes back as a key that sorts after all others."""
    with fault_proxy(s3_server) as proxy:
        proxy.alter = lambda method, path, page: page.replace(b"0000</Key>", "\ufffd</Key>".encode())
        listing = keys(through(proxy), full, "in/", recursive=False)
        names = list(through(proxy).names(full, "in/"))
    assert [key for page in listing for key in page] == ["in/\ufffd", *NAMES[1:]]
    assert len(names) == len(NAMES) + 1


# --- requests that fail -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", ["truncated page", *(pytest.param(fault, marks=pytest.mark.slow) for fault in ("503", "short body"))]
)
def test_a_page_that_fails_fails_the_listing(full: str, s3_server: str, fault: Fault) -> None:
    """D15: the second page never comes, or comes cut off; in both cases the listing fails."""
    with fault_proxy(s3_server) as proxy:
        proxy.choose = lambda method, path, before: fault if "start-after" in path else None
        with pytest.raises(StoreUnavailable):
            keys(through(proxy, attempts=1), full)
        proxy.choose = lambda method, path, before: None
        assert sum(map(len, keys(through(proxy), full))) == 1202


def test_nobody_answers(bucket: str) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        ObjectStore("http://127.0.0.1:9", patience=Patience(0.5, retries=0)).head(bucket, "a")
    assert caught.value.retry is Retry.WAIT


def test_what_is_set_wrongly_is_permanent(store: ObjectStore, bucket: str, s3_server: str) -> None:
    with pytest.raises(StoreRefused, match="create the bucket"):
        keys(store, "s3://no-such-bucket-here")
    with pytest.raises(StoreRefused, match="s3_profile"):
        ObjectStore(s3_server, profile="nobody").head(bucket, "a")
    assert StoreRefused.retry is Retry.PERMANENT


def test_without_credentials_the_remedy_names_the_settings(
    s3_server: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StoreRefused, match="s3_profile"):
        ObjectStore(s3_server).head(bucket, "a")


@pytest.mark.parametrize(
    ("code", "error", "retry"),
    [("ExpiredToken", StoreUnavailable, Retry.WAIT), ("AccessDenied", StoreRefused, Retry.PERMANENT)],
)
def test_a_403_is_about_this_moment_or_for_good(
    bucket: str, proxy: FaultProxy, code: str, error: type[DrainmarkError], retry: Retry
) -> None:
    """D17: expired credentials make it wait, because they are renewed outside; a missing permission does not."""
    proxy.error = (code, "no")
    proxy.choose = lambda method, path, before: "403"
    with pytest.raises(error) as caught:
        through(proxy).get(bucket, "a")
    assert caught.value.retry is retry
    assert ("s3:GetObject" if error is StoreRefused else "renew the credentials") in str(caught.value.remedy)


@canary.only_with_moto("it has not issued these credentials")
def test_credentials_that_expire_are_renewed(
    s3_server: str, bucket: str, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D17: boto3 renews them during the work, from the process that a profile names; tables get the new ones, too."""
    script = tmp_path / "credentials.py"
    script.write_text(_ISSUER.format(count=str(tmp_path / "count")))
    (tmp_path / "aws-config").write_text(f"[profile short]\ncredential_process = {sys.executable} {script}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws-config"))
    renewed = ObjectStore(s3_server, profile="short")
    store.put(bucket, "a", b"1")
    assert renewed.get(bucket, "a") == b"1"
    first = renewed.connection.credentials()
    assert renewed.get(bucket, "a") == b"1"
    assert renewed.connection.credentials() != first
    assert int((tmp_path / "count").read_text()) >= 2


_ISSUER = """
import datetime, json, pathlib
count = pathlib.Path({count!r})
number = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(number))
soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=60)  # botocore renews well before
print(json.dumps({{"Version": 1, "AccessKeyId": f"AKIACANARY{{number:010d}}", "SecretAccessKey": "s" * 20,
                  "SessionToken": f"token-{{number}}", "Expiration": soon.isoformat()}}))
"""


# --- secrets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        f"GET {WEB}://user:pass-word@host:1/b",
        f"{WEB}://h/b/k?X-Amz-Credential=AKIAX%2F1&X-Amz-Signature=abcdef0123&X-Amz-Security-Token=tok-en",
        "The AWS Access Key Id AKIAIOSFODNN7EXAMPLE does not exist",
        f"{WEB}://h/b?AWSAccessKeyId=abc123&Signature=de%2Ff&Expires=1",
    ],
)
def test_a_text_is_redacted(text: str) -> None:
    """No secret is left in the text (Z5)."""
    shown = redacted(text)
    for secret in ("pass-word", "abcdef0123", "tok-en", "AKIAIOSFODNN7EXAMPLE", "AKIAX", "abc123", "de%2Ff"):
        assert secret not in shown
    assert "***" in shown


def test_what_the_server_sends_back_is_not_repeated(bucket: str, proxy: FaultProxy) -> None:
    """Z5: a store answers with the key, the secret and the token; none of them is in the error or its causes."""
    proxy.error = ("AccessDenied", " ".join(canary.KEYS.values()))
    proxy.choose = lambda method, path, before: "500"
    with pytest.raises(StoreUnavailable) as caught:
        list(through(proxy, attempts=1).pages(bucket))
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + str(caught.value.to_json())
    assert "AccessDenied" in shown
    assert not [secret for secret in canary.KEYS.values() if secret in shown]


def test_the_client_shows_no_secret(store: ObjectStore) -> None:
    store.connection.client.list_buckets()
    assert not [secret for secret in canary.ALL if secret in repr(store)]


def test_the_settings_make_one_client(tmp_path: Path, s3_server: str) -> None:
    """One client for each endpoint, profile and region: inputs and tables share its connections."""
    settings = Settings(home=tmp_path, project_root=tmp_path, s3_endpoint_url=s3_server, s3_region="eu-north-1")
    assert object_store(settings) is object_store(settings.model_copy())
    assert object_store(settings).connection.client.meta.region_name == "eu-north-1"
    assert object_store(settings) is not object_store(settings.model_copy(update={"s3_region": None}))


@pytest.mark.parametrize("address", [f"{WEB}://key:secret@host:9000", "ftp://host", "host:9000", f"{WEB}://h?token=x"])
def test_an_endpoint_holds_no_credentials(tmp_path: Path, address: str) -> None:
    """An endpoint with credentials is refused (Z5)."""
    with pytest.raises(ValueError, match="without user, password or query"):
        Settings(home=tmp_path, project_root=tmp_path, s3_endpoint_url=address)
