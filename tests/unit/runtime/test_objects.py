"""Objects of a bucket as triggers: new and changed objects in a listing, and the meaning of an address (I2–I5)."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pytest

from drainmark.jobs.errors import StoreUnavailable, UsageError
from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
from drainmark.jobs.protocol.records.addresses import address_of, prefix_of
from drainmark.jobs.scan.bucket_listing import PrefixListing
from drainmark.jobs.scan.bucket_objects import lies_at, listing_prefix, selects
from drainmark.jobs.scan.findings import ScanFindings, ScanResult
from drainmark.jobs.scan.index import ScanNote
from drainmark.jobs.scan.scanner import scan_once
from drainmark.jobs.tasks.buckets import ObjectFacts
from drainmark.orchestration.verbs.inputs.backfill import pattern_of


def facts(key: str, etag: str = "e", modified: float = 0.0, size: int = 1) -> ObjectFacts:
    return ObjectFacts(key=key, size=size, etag=etag, modified=modified)


class Listed:
    """A store with some pages of objects."""

    def __init__(self, *pages: Iterable[ObjectFacts]) -> None:
        self.given = pages

    def pages(self, start_after: str = "", first_page: int = 1000) -> Iterator[Sequence[ObjectFacts]]:
        yield from ([each for each in page if each.key > start_after] for page in self.given)

    def head(self, key: str) -> ObjectFacts | None:
        raise AssertionError("one look asks for no single object")


def looked(location: str, objects: Iterable[ObjectFacts], known: Mapping[str, str]) -> ScanResult:
    scan = DirectoryScan(path=location)
    return scan_once(PrefixListing(location, scan, Listed(objects)), scan, known, now=0.0)


def test_a_listing_becomes_triggers() -> None:
    """Known objects are omitted, another etag is a change, markers of folders are no files; any key is allowed."""
    listing = [facts("in/a\nb%20[1]{*}"), facts("in/known"), facts("in/other", "new"), facts("in/d/e")]
    listing.insert(0, facts("in/", size=0))
    first = looked("s3://bucket/in", listing, {})
    assert [trigger.uri for trigger in first.new] == [
        "s3://bucket/in/a\nb%20[1]{*}", "s3://bucket/in/known", "s3://bucket/in/other",
    ]  # fmt: skip
    known = {trigger.uri: trigger.identity_key for trigger in first.new[1:]}
    known["s3://bucket/in/other"] = known["s3://bucket/in/known"].replace("e", "before")
    again = looked("s3://bucket/in", listing, known)
    assert [trigger.uri for trigger in again.new] == ["s3://bucket/in/a\nb%20[1]{*}"]
    assert [(uri, trigger.identity["etag"]) for uri, _, trigger in again.changed] == [("s3://bucket/in/other", "new")]
    assert (again.seen, again.unsettled, again.refused) == (3, 0, ())


def test_a_round_goes_on_behind_a_page_of_folders_alone() -> None:
    """A store returns an empty page if a thousand folders lie between two files; the listing does not end there."""
    pages = [(facts("in/a"),), (), (facts("in/x"),)]
    listing = PrefixListing("s3://bucket/in", DirectoryScan(path="s3://bucket/in"), Listed(*pages))
    assert [each.key for _, page in listing.rest("") for each in page] == ["in/a", "in/x"]


def test_what_two_folders_tails_lead_to_is_looked_at_once() -> None:
    """The known key of a folder was deleted, so the listing before the folder continues into the folder."""
    scan = DirectoryScan(path="s3://bucket/in", recursive=True)
    listing = PrefixListing("s3://bucket/in", scan, Listed((facts("in/z/90"), facts("in/z/91"))))
    note = ScanNote(source="it", is_large=True, tails={"": "in/b", "z/": "in/z/05"}, greatest="in/z/05")
    assert [each.key for page in listing.news(note, ScanFindings(0.0)) for each in page] == ["in/z/90", "in/z/91"]


def test_the_time_of_an_object_is_no_part_of_it() -> None:
    (first,) = looked("s3://bucket/in", [facts("in/a", modified=1.0)], {}).new
    known = {first.uri: first.identity_key}
    found = looked("s3://bucket/in", [facts("in/a", modified=2.0)], known)
    assert (found.new, found.changed) == ((), ())


def test_a_listing_that_breaks_off_is_none() -> None:
    """D15"""

    def listing() -> Iterator[ObjectFacts]:
        yield facts("a")
        raise StoreUnavailable("page 2")

    with pytest.raises(StoreUnavailable):
        looked("s3://bucket/in", listing(), {})


@pytest.mark.parametrize(
    ("scan", "prefix"),
    [
        ({"pattern": "2026-*.csv"}, "2026-"),
        ({"pattern": "*.csv"}, ""),
        ({"pattern": "2026-*.csv", "recursive": True}, ""),
        ({"pattern": "2026/*.csv", "recursive": True}, "2026/"),
        ({"outputs": {"a": "in/orders/*.csv", "b": "in/old/*.csv"}}, "in/o"),
        ({"pattern": "one.csv"}, "one.csv"),
    ],
)
def test_no_more_is_listed_than_can_match(scan: dict[str, object], prefix: str) -> None:
    assert listing_prefix(DirectoryScan(path="s3://b", **scan)) == prefix  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("glob", "meant", "not_meant"),
    [
        ("in/*.csv", "in/a.csv", "in/x/a.csv"),
        ("in/**/*.csv", "in/x/y/a.csv", "in/x/a.txt"),
        ("in/**/*.csv", "in/a.csv", "in2/a.csv"),
        ("in/**", "in/a/b", "in"),
        ("a?", "ab", "a/"),
        ("a[bc]", "ac", "ad"),
        ("a[!bc]", "ad", "ab"),
        ("a[1].t", "a1.t", "a[1].t"),
        ("a[b", "a[b", "ab"),
        ("a.c*", "a.c", "abc"),
    ],
)
def test_a_glob_means_keys(glob: str, meant: str, not_meant: str | None) -> None:
    assert selects(glob, meant)
    assert not_meant is None or not selects(glob, not_meant)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "one",
    ["[^a]", "[!a]", "[!^]", "[z-a]", "[!z-a]", "[[]", "[]]", "[!]]", "[a&&b]", "[~~]", "[a||b]", "[--0]", "[\\]", "[]",
     "[!]", "[\\d]", "[a-]", "[*]", "[?]", "[[:alpha:]]"],
)  # fmt: skip
def test_a_class_means_for_keys_what_it_means_for_files(one: str) -> None:
    texts = [*"ab^z[]&~|-.0d\\!*?:", "[]", "[!]", "a]", "é"]
    assert [text for text in texts if selects(f"in/{one}.t", f"in/{text}.t")] == [
        text for text in texts if fnmatch.fnmatchcase(text, one)
    ]
    assert not selects(f"in{one}t", "in/t")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("key", ["p/a[1].csv", "p/[^].csv", "what?/*.csv", "p/a]b[.csv"])
def test_the_pattern_of_a_key_means_that_key(key: str) -> None:
    (told,) = [pattern_of(f"s3://b/{key}").removeprefix("s3://b/")]
    assert selects(told, key)
    assert not selects(told, key.replace("[", "1").replace("?", "1"))


@pytest.mark.parametrize(
    ("place", "there", "elsewhere"),
    [
        ("", "a/b", None),
        ("in", "in/a/b", "inbox/a"),
        ("in/", "in/a", "in2/a"),
        ("in/a.csv", "in/a.csv", "in/a.csv2"),
        ("in[1]", "in[1]/a", "in1/a"),
        ("a[1].t", "a[1].t", "a1.t"),
    ],
)
def test_a_key_lies_at_its_name_and_in_its_folders(place: str, there: str, elsewhere: str | None) -> None:
    assert lies_at(place, there)
    assert elsewhere is None or not lies_at(place, elsewhere)


def test_an_address_is_bucket_and_key() -> None:
    assert address_of("s3://bucket/a//b c%20") == ("s3://bucket", "a//b c%20")
    assert prefix_of("s3://bucket") == prefix_of("s3://bucket/") == ("s3://bucket", "")
    assert prefix_of("s3://bucket/in") == prefix_of("s3://bucket/in/") == ("s3://bucket", "in/")


@pytest.mark.parametrize("uri", ["s3://", "s3:///a", "bucket/a", "s3://key:secret@bucket/a", "s3://host:9000/bucket"])
def test_what_is_no_address_is_refused_and_not_repeated(uri: str) -> None:
    """Z5"""
    with pytest.raises(UsageError) as caught:
        address_of(uri)
    assert "secret" not in str(caught.value)
