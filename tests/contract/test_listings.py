"""A listing is whole, or is refused by name: against an S3 server, and a proxy that lists as other servers do (D15)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import canary
import pytest
from fault_proxy import FaultProxy, fault_proxy

from drainmark.jobs.errors import StoreRefused, StoreUnavailable
from drainmark.jobs.tasks.bucket_clients import Patience
from drainmark.resources.storage.object_store import ObjectStore

pytestmark = [pytest.mark.usefixtures("s3_credentials"), pytest.mark.seed("D15")]

ALTERED = "\ufffd"
CONTENTS = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)
TOKEN_OF = b"<NextContinuationToken>%s</NextContinuationToken>"
TOKEN = re.compile(rb"<NextContinuationToken>.*?</NextContinuationToken>")
OPAQUE_TOKENS = canary.only_with_moto("its tokens are keys with U+FFFD, and no other key is on this page")


@pytest.fixture
def proxy(s3_server: str, store: ObjectStore) -> Iterator[FaultProxy]:
    with fault_proxy(s3_server) as served:
        yield served


def put(store: ObjectStore, bucket: str, *keys: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(bucket, key, key.encode()), keys))


def in_pages_of(number: int, url: str) -> ObjectStore:
    """Return a client for which the server puts so many keys on a page."""
    store = ObjectStore(url, patience=Patience(retries=0))
    store.connection.client.meta.events.register(
        "provide-client-params.s3.ListObjectsV2", lambda params, **_: {**params, "MaxKeys": number}
    )
    return store


def keys(store: ObjectStore, bucket: str, **asked: bool | str) -> list[str]:
    return [facts.key for page in store.pages(bucket, "in/", **asked) for facts in page]  # type: ignore[arg-type]


def without_control_characters(method: str, path: str, content: bytes) -> bytes:
    """Answer as servers do that write keys into XML as they are."""
    return re.sub(rb"%(0B|0C|01)", ALTERED.encode(), content) if "list-type=2" in path else content


def altered_with_tokens(method: str, path: str, content: bytes) -> bytes:
    """Answer as servers do whose tokens are the keys, with the same characters in their place."""
    return TOKEN.sub(TOKEN_OF % f"in/{ALTERED}".encode(), without_control_characters(method, path, content))


def edited(change: Callable[[bytes], bytes]) -> Callable[[str, str, bytes], bytes]:
    return lambda method, path, content: change(content) if "list-type=2" in path else content


ODD = ["in/\x0bfirst", "in/a", "in/b\x0b", "in/b\x0c", "in/b\x0c2", "in/c", "in/z", f"in/{ALTERED}"]


@pytest.mark.parametrize("size", [*(pytest.param(size, marks=OPAQUE_TOKENS) for size in (1, 2, 3)), 4, 5, 6, 7, 8])
def test_altered_keys_at_any_place_of_a_page_hide_no_other(
    store: ObjectStore, bucket: str, proxy: FaultProxy, size: int
) -> None:
    """If all keys of a page are altered, the listing goes on at the server's token, which is not."""
    put(store, bucket, *ODD)
    proxy.alter = without_control_characters
    found = keys(in_pages_of(size, proxy.url), bucket)
    assert sorted(found) == sorted(re.sub("[\x0b\x0c]", ALTERED, key) for key in ODD)


def test_a_page_of_altered_keys_alone_is_refused_by_name_if_the_token_is_altered(
    store: ObjectStore, bucket: str, proxy: FaultProxy
) -> None:
    put(store, bucket, *ODD)
    proxy.alter = altered_with_tokens
    assert len(keys(in_pages_of(4, proxy.url), bucket)) == len(ODD)
    with pytest.raises(StoreRefused, match=f"{bucket}/in/") as caught:
        keys(in_pages_of(1, proxy.url), bucket)
    assert "under other keys" in str(caught.value.remedy)
    store.delete(bucket, [key for key in ODD if key != f"in/{ALTERED}" and not key.isprintable()])  # as the remedy says
    assert keys(in_pages_of(3, proxy.url), bucket) == ["in/a", "in/c", "in/z", f"in/{ALTERED}"]


SIDE_BY_SIDE = [
    "in/a",
    "in/a b/x",
    "in/a-b",
    "in/a/b",
    "in/a/c/d",
    "in/a0",
    "in/a\x01b",
    "in/b/",
    "in/b/c",
    "in/é",
    "in/💧",
]


@pytest.mark.parametrize("size", [pytest.param(1, marks=OPAQUE_TOKENS), 2, 3, 5, 1000])
def test_keys_beside_folders_are_listed_once(store: ObjectStore, bucket: str, s3_server: str, size: int) -> None:
    """SeaweedFS lists a folder with all below it before its neighbours, and other servers by characters."""
    put(store, bucket, *SIDE_BY_SIDE)
    there = in_pages_of(size, s3_server)
    assert sorted(keys(there, bucket)) == sorted(SIDE_BY_SIDE)
    names = {key.removeprefix("in/").partition("/")[0] for key in SIDE_BY_SIDE}
    assert set(there.names(bucket, "in/")) == names
    assert sorted(keys(there, bucket, recursive=False)) == sorted(key for key in SIDE_BY_SIDE if key.count("/") == 1)


def test_folders_that_a_page_has_too_early_hide_no_key(store: ObjectStore, bucket: str, proxy: FaultProxy) -> None:
    """S3Mock adds all further folders to each page, whatever keys come before them."""
    put(store, bucket, "in/a", "in/b", "in/c", "in/m/1", "in/x", "in/z/1")
    folders = b"".join(b"<CommonPrefixes><Prefix>in/%s/</Prefix></CommonPrefixes>" % name for name in (b"m", b"z"))
    alone = re.compile(rb"<CommonPrefixes>.*?</CommonPrefixes>", re.DOTALL)
    proxy.alter = edited(lambda page: alone.sub(b"", page).replace(b"</ListB", folders + b"</ListB"))
    there = in_pages_of(2, proxy.url)
    assert keys(there, bucket, recursive=False) == ["in/a", "in/b", "in/c", "in/x"]
    assert sorted(there.names(bucket, "in/")) == ["a", "b", "c", "m", "x", "z"]


# --- listings that are refused ------------------------------------------------------------------------------------


@canary.only_with_moto("a request whose address was signed is refused")
@pytest.mark.parametrize("size", [2, 1000])
def test_a_page_that_comes_again_is_refused(store: ObjectStore, bucket: str, proxy: FaultProxy, size: int) -> None:
    put(store, bucket, "in/a", "in/b", "in/c")
    proxy.choose = lambda method, path, before: "from the beginning"
    with pytest.raises(StoreRefused, match="'in/a' after 'in/b'"):
        keys(in_pages_of(size, proxy.url), bucket, start_after="in/b")


def in_reverse(page: bytes) -> bytes:
    found = CONTENTS.findall(page)
    return page.replace(b"".join(found), b"".join(reversed(found)))


def without_keys(page: bytes, token: bytes = b"") -> bytes:
    return TOKEN.sub(token, CONTENTS.sub(b"", page))


WRONG: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "falling": (in_reverse, "'in/a' after 'in/b'"),
    "doubled": (lambda page: CONTENTS.sub(lambda found: found.group() * 2, page), "'in/a' after 'in/a'"),
    "of another prefix": (lambda page: re.sub(rb"in(/|%2F)b", b"of/b", page), "'of/b', which is not below it"),
    "empty, and not the last page": (without_keys, "where the next page begins"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_listing_that_may_leave_out_keys_is_refused(
    store: ObjectStore, bucket: str, proxy: FaultProxy, wrong: str
) -> None:
    put(store, bucket, "in/a", "in/b", "in/c")
    change, told = WRONG[wrong]
    proxy.alter = edited(change)
    with pytest.raises(StoreRefused, match=told) as caught:
        keys(in_pages_of(2, proxy.url), bucket)
    assert f"{bucket}/in/" in str(caught.value)
    assert len(proxy.seen) < 9


def test_a_server_that_gives_the_same_token_again_is_refused(
    store: ObjectStore, bucket: str, proxy: FaultProxy
) -> None:
    put(store, bucket, "in/a", "in/b", "in/c")
    tokens: list[bytes] = []

    def change(page: bytes) -> bytes:
        tokens.extend(TOKEN.findall(page))
        return TOKEN.sub(tokens[0], CONTENTS.sub(b"", page))

    proxy.alter = edited(change)
    with pytest.raises(StoreRefused, match="where the next page begins"):
        keys(in_pages_of(1, proxy.url), bucket)


def test_an_answer_that_is_no_listing_is_no_empty_listing(store: ObjectStore, bucket: str, proxy: FaultProxy) -> None:
    proxy.alter = edited(lambda page: b"<html><body>welcome</body></html>")
    with pytest.raises(StoreUnavailable, match="is none"):
        keys(ObjectStore(proxy.url, patience=Patience(retries=0)), bucket)


@canary.only_with_moto("it refuses no token")
def test_a_token_that_is_refused_ends_no_listing(store: ObjectStore, bucket: str, proxy: FaultProxy) -> None:
    put(store, bucket, "in/a", "in/b", "in/c")
    proxy.alter = edited(lambda page: without_keys(page, TOKEN_OF % b"nonsense"))
    with pytest.raises(StoreUnavailable, match=f"{bucket}/in/"):
        keys(in_pages_of(2, proxy.url), bucket)


def test_an_empty_page_with_a_token_is_not_the_end(store: ObjectStore, bucket: str, proxy: FaultProxy) -> None:
    put(store, bucket, "in/a", "in/b", "in/c")
    proxy.alter = lambda method, path, content: content if "token" in path else CONTENTS.sub(b"", content)
    assert keys(in_pages_of(1, proxy.url), bucket) == ["in/b"], "the proxy takes what follows no token"
