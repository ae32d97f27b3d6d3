"""A region's page in a real browser: light and dark, on a desktop and a phone, legible, with nothing from outside."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser.chrome import Chrome, opened_chrome
from by_hand import HandFed
from report_rows import eventful

from drainmark.orchestration.html_report.page import page
from drainmark.orchestration.html_report.page_server import Pages, PageServer, listening
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

pytestmark = pytest.mark.slow

PHONE, DESK = 390, 1280
CONTRAST = 4.5
"""The least contrast of text by the guidelines for accessible pages."""

_CUT = """[...document.querySelectorAll('.two .box')].filter(each => each.scrollWidth > each.clientWidth)
  .map(each => each.innerText)"""

_CONTRASTS = """(() => {
  const parts = text => (text.match(/[0-9.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const paper = each => { for (let at = each.closest('svg') || each; at; at = at.parentElement) {
    const found = parts(getComputedStyle(at).backgroundColor); if (found.length === 3 || found[3] > 0) return found; }
    return [255, 255, 255]; };
  const found = {};
  for (const each of document.querySelectorAll('main *')) {
    if (each.closest('title') || ![...each.childNodes].some(node => node.nodeType === 3 && node.data.trim())) continue;
    const style = getComputedStyle(each), ink = parts(each.closest('svg') ? style.fill : style.color);
    const [a, b] = [light(ink), light(paper(each))].sort((x, y) => y - x);
    const name = `${each.tagName} ${each.getAttribute('class') || ''}`;
    found[name] = Math.min(found[name] || 99, (a + 0.05) / (b + 0.05));
  }
  return found;
})()"""


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """Yield a browser on the served pages of a region with a hostile file name, and write a page with all marks."""
    root: Path = tmp_path_factory.mktemp("page")
    place = Workplace(Settings(home=root / "home", project_root=root))
    fed = HandFed(place, root / "inbox")
    for name in ("a", "<img src=x onerror=document.title='taken'>", "c" * 150):
        fed.write(name, ["1"])
        fed.add(name)
        fed.drain()
    (root / "marked.html").write_text(page(eventful().report()))
    with PageServer(listening(0), Pages(place)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with opened_chrome(f"http://127.0.0.1:{server.socket.getsockname()[1]}") as opened:
                yield opened
        finally:
            server.shutdown()
            thread.join()
            place.registry.close()


@pytest.fixture
def marked(chrome: Chrome, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of the page with all marks, which is a file."""
    return next(tmp_path_factory.getbasetemp().glob("page*/marked.html")).as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_it_fits_and_is_legible(chrome: Chrome, marked: str, width: int, scheme: str) -> None:
    chrome.appear(width=width, scheme=scheme)
    chrome.driver.get(marked)
    chrome.wait_for("word_count/lines", "Failures, halts, rewinds")
    assert chrome.ask("document.documentElement.scrollWidth") <= width
    if width == DESK:
        assert chrome.ask(_CUT) == []
    faint = {name: ratio for name, ratio in chrome.ask(_CONTRASTS).items() if ratio < CONTRAST}
    assert faint == {}
    paper = chrome.ask("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)")
    assert (sum(paper) > 600) == (scheme == "light")


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_the_newest_group_is_in_view(chrome: Chrome, marked: str, width: int) -> None:
    chrome.appear(width=width)
    chrome.driver.get(marked)
    left, right = chrome.ask(
        "(() => { const all = document.querySelectorAll('.timeline .reader'), box = all[all.length - 1];"
        " const at = box.getBoundingClientRect(); return [at.left, at.right]; })()"
    )
    assert 0 <= left < right <= width


def test_what_is_served_loads_nothing_else_and_runs_nothing(chrome: Chrome) -> None:
    chrome.appear()
    chrome.open("/", "Regions", "by_hand/files")
    chrome.click("by_hand/files")
    chrome.wait_for("The newest 3 groups", "<img src=x")
    assert chrome.ask("performance.getEntriesByType('resource').map(each => each.name)") == []
    assert chrome.ask("document.querySelectorAll('script, img, iframe').length") == 0
    assert chrome.ask("document.title") == "by_hand/files: STARTED"
    assert chrome.driver.get_log("browser") == []
    assert chrome.ask("document.documentElement.scrollWidth") <= DESK + 160
