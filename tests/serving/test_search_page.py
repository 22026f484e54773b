"""`anmi serve RUN` as a user starts it, and its page in a real browser: by keys alone, with a key, dark and narrow."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from anmi_ray.api.runs import Run
from tests.labelling import browser
from tests.serving.searched import RETRIEVERS, wanted

KEY = "a-key-of-this-test"
READY_S = 240


@contextmanager
def serving(run: Run, folder: Path) -> Iterator[str]:
    """The address of `anmi serve RUN`, as a user starts it, with KEY."""
    command = [sys.executable, "-m", "anmi_ray", "serve", run.name, "--root", run.root, "--port", "0"]
    environment = {**os.environ, "SERVICE_KEY": KEY}
    errors = folder / "errors"
    with errors.open("w") as sink:
        command += ["--key-env", "SERVICE_KEY"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sink, text=True, env=environment)
    assert process.stdout is not None
    try:
        killer = threading.Timer(READY_S, process.kill)
        killer.start()
        said = line = process.stdout.readline()
        while line and not line.startswith("search its documents"):  # indexes that are made again are told before
            line = process.stdout.readline()
            said += line
        killer.cancel()
        found = re.search(r"^search its documents at (http://127\.0\.0\.1:\d+/)$", said, re.MULTILINE)
        assert found, (said, errors.read_text()[-2000:])
        yield found[1]
        process.terminate()
        assert process.wait(READY_S) == 0
        assert errors.read_text() == ""
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(READY_S)
        process.stdout.close()


def keys(tab: browser.Tab, *pressed: str) -> None:
    for key in pressed:
        tab.press(key)


SHOWN = "shown.length === {} && of('columns').getAttribute('aria-busy') === 'false' && asked === of('query').value"


@pytest.mark.slow
@pytest.mark.skipif(browser.PROGRAM is None, reason="needs Chromium: none was found")
def test_the_page_compares_systems_by_keys_alone(searched: Run, tmp_path: Path) -> None:
    text, systems = next(wanted(searched))
    with serving(searched, tmp_path) as address, browser.tabs(tmp_path / "profile", 1) as (tab,):
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
        assert tab.value("document.querySelectorAll('path').length") == len(set(hybrid) & set(fused))
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
