"""`anmi serve RUN` as a user starts it, and its page in a real browser: with a key, dark and narrow."""

from __future__ import annotations

import json
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


@pytest.mark.slow
@pytest.mark.skipif(browser.PROGRAM is None, reason="needs Chromium: none was found")
def test_the_page_compares_systems(searched: Run, address: str, tmp_path: Path) -> None:
    text, systems = next(wanted(searched))
    with browser.tabs(tmp_path / "profile", 1) as (tab,):

        def write(words: str) -> None:
            for key in (*words, "Enter"):
                tab.press(key)

        def search(query: str) -> None:
            tab.value("of('query').focus(), of('query').value = ''")
            write(query)
            title = json.dumps(f"{query} · searched")
            tab.wait(f"document.title === {title} && of('columns').ariaBusy === 'false'")

        tab.open(address)
        tab.wait("document.activeElement?.id === 'key' && !of('unlock').hidden")
        write("wrong")
        assert "key is missing or wrong" in tab.wait("of('fault').hidden ? '' : of('fault').textContent")
        write(KEY)
        tab.wait("document.activeElement?.id === 'query' && of('unlock').hidden")
        assert tab.value("of('first').value + ' ' + of('second').value") == "hybrid reranked+hybrid"
        search(text)
        ids = "[...one.querySelectorAll('li')].map((row) => row.dataset.id)"
        hybrid, fused = tab.value(f"[...of('columns').children].map((one) => {ids})")
        assert hybrid == [doc for doc, _ in systems["hybrid"][:10]]
        assert fused == [doc for doc, _ in systems["reranked+hybrid"][:10]]
        moves = tab.value("[...document.querySelectorAll('section:last-child summary')].map((one) => one.innerText)")
        before = {doc: rank for rank, (doc, _) in enumerate(systems["hybrid"], 1)}
        for rank, (doc, shown) in enumerate(zip(fused, moves, strict=True), 1):
            moved = before[doc] - rank
            assert shown.endswith("=" if not moved else f"{'▲' if moved > 0 else '▼'} {abs(moved)} from {before[doc]}")
        tab.value("document.querySelector('summary').focus()")
        tab.press("Enter")
        stages = tab.value("[...document.querySelectorAll('details[open] tbody th')].map((one) => one.textContent)")
        assert stages == [*RETRIEVERS, "hybrid", "student", "reranked", "reranked+hybrid"]
        tab.picture(tmp_path / "wide.png")
        search("word7 onerror")
        assert "onerror" in tab.value("of('columns').innerText")
        assert tab.value("document.querySelectorAll('#columns img, #columns script').length") == 0
        assert KEY not in tab.value("location.href + document.documentElement.outerHTML + JSON.stringify(localStorage)")
        for dark in (False, True):
            tab.picture(tmp_path / f"narrow{dark}.png", width=360, dark=dark)
            assert tab.value("document.documentElement.scrollWidth") <= 360
            ground = tab.value("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, re.findall(r"\d+", ground))) < 200) == dark
        tab.value("history.back()")
        tab.wait(f"of('query').value === {json.dumps(text)} && document.title.startsWith({json.dumps(text)})")
