"""The page in a real browser, by its keys alone: people answer, reload, and go on after the command was killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from anmi_ray.api.labelling import Labelling
from anmi_ray.api.runs import Run
from anmi_ray.labelling.answers import last_answers
from tests.labelling import browser
from tests.labelling.command import LabelCommand
from tests.labelling.made import write_run

pytestmark = pytest.mark.skipif(browser.PROGRAM is None, reason="needs Chromium: none was found")


def shows(tab: browser.Tab, answered: int) -> None:
    tab.wait(f"seen?.answered === {answered} && !waiting")


@pytest.mark.slow
def test_two_people_answer_by_keys_reload_and_go_on_after_a_kill(tmp_path: Path) -> None:
    write_run(tmp_path)
    with browser.tabs(tmp_path / "profile", 2) as (ana, ben):
        with LabelCommand(tmp_path, "--people", "2", "--pairs", "12") as command:
            ana.open(command.address)
            ana.wait("document.activeElement.id === 'name' && !document.getElementById('start').hidden")
            for letter in "ana":
                ana.press(letter)
            ana.press("Enter")
            shows(ana, 0)
            assert ana.value("document.querySelectorAll('article img, h1 script, article script').length") == 0
            assert ana.value("document.title") == "Which document answers better?"
            for answered, key in enumerate(("ArrowLeft", "ArrowRight", "1", "2", "u"), start=1):
                ana.press(key)
                shows(ana, answered)
            ana.press("Backspace")
            ana.wait("seen.at === 4 && document.querySelector('button.given').dataset.side === 'unsure'")
            ana.press("ArrowRight")
            ana.wait("seen.at === 5 && !waiting")
            ben.open(f"{command.address}?person=ben")
            shows(ben, 0)
            ben.press("ArrowLeft")
            shows(ben, 1)
            ana.command("Page.reload")
            ana.wait("document.readyState === 'complete' && seen?.answered === 5 && seen.at === 5")
            command.kill()
            ana.press("ArrowLeft")
            assert "Not kept" in ana.wait("document.getElementById('fault').textContent")
        with LabelCommand(tmp_path, "--people", "2") as command:
            ana.open(f"{command.address}?person=ana")
            shows(ana, 5)
            while ana.value("seen.left !== undefined"):
                before = ana.value("seen.answered")
                ana.press("2")
                shows(ana, before + 1)
            ana.wait("!document.getElementById('done').hidden")
            assert "ana: " in command.end()
    answers = Labelling(Run("made", tmp_path)).answers
    assert len(last_answers(answers)) == len(answers) - 1  # the one that was unsure at first
