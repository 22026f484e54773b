"""`anmi serve RUN` as a user starts it, and its page in a real browser: by keys alone, with a key, dark and narrow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from anmi_ray.api.runs import Run
from tests.labelling import browser
from tests.serving.running import KEY, READY_S, serving
from tests.serving.searched import RETRIEVERS, wanted


@pytest.fixture
def address(searched: Run, tmp_path: Path) -> Iterator[str]:
    """The page's, as `anmi serve RUN` says it."""
    with serving(searched.name, tmp_path / "errors", "--root", searched.root) as served:
        said = served.said()
        found = re.fullmatch(r"search its documents at (http://127\.0\.0\.1:\d+/)\n", said)
        assert found, said
        yield found[1]
        served.process.terminate()
        assert served.process.wait(READY_S) == 0
        assert served.errors.read_text() == ""


def keys(tab: browser.Tab, *pressed: str) -> None:
    for key in pressed:
        tab.press(key)


SHOWN = "shown.length === {} && of('columns').getAttribute('aria-busy') === 'false' && asked === of('query').value"


@pytest.mark.slow
@pytest.mark.skipif(browser.PROGRAM is None, reason="needs Chromium: none was found")
def test_the_page_compares_systems_by_keys_alone(searched: Run, address: str, tmp_path: Path) -> None:
    text, systems = next(wanted(searched))
    with browser.tabs(tmp_path / "profile", 1) as (tab,):
        tab.open(address)
        tab.wait("document.activeElement?.id === 'key' && !of('unlock').hidden")
        keys(tab, *"wrong", "Enter")
        assert "key is missing or wrong" in tab.wait("of('fault').hidden ? '' : of('fault').textContent")
        keys(tab, *KEY, "Enter")
        tab.wait("document.activeElement?.id === 'query' && of('unlock').hidden")
        assert tab.value("of('first').value + ' ' + of('second').value") == "hybrid reranked+hybrid"
        keys(tab, *text, "Enter")
        tab.wait(SHOWN.format(2))
        ids = "[...one.querySelectorAll('li')].map((row) => row.dataset.id)"
        hybrid, fused = tab.value(f"[...document.querySelectorAll('.column')].map((one) => {ids})")
        assert hybrid == [doc for doc, _ in systems["hybrid"][:10]]
        assert fused == [doc for doc, _ in systems["reranked+hybrid"][:10]]
        keys(tab, "ArrowDown")  # from the query to the first document, and to the same on the other side
        assert tab.value("document.activeElement.closest('li').dataset.id") == hybrid[0]
        keys(tab, "ArrowRight", "Enter")
        there = hybrid[0] if hybrid[0] in fused else fused[0]
        assert tab.value("document.activeElement.closest('li').dataset.id") == there
        stages = tab.value("[...document.querySelectorAll('.why tbody th')].map((one) => one.textContent)")
        assert stages == [*RETRIEVERS, "hybrid", "reranked", "reranked+hybrid"]
        keys(tab, "Escape")
        assert tab.value("document.querySelectorAll('li.open, .why').length") == 0
        keys(tab, "/", *"word7 onerror", "Enter")
        tab.wait(SHOWN.format(2))
        tab.value("document.querySelectorAll('.head').forEach((one) => one.click())")
        assert "onerror" in tab.value("of('columns').innerText")
        assert tab.value("document.querySelectorAll('#columns img, #columns script').length") == 0
        assert tab.value("document.title") == "word7 onerror · searched"
        assert KEY not in tab.value("location.href + document.documentElement.outerHTML + JSON.stringify(localStorage)")
        for dark in (False, True):
            tab.picture(tmp_path / "narrow.png", width=360, dark=dark)
            assert tab.value("document.documentElement.scrollWidth") <= 360
            ground = tab.value("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, re.findall(r"\d+", ground))) < 200) == dark
