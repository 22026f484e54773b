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
    tab.wait(f"document.readyState === 'complete' && document.body.innerText.includes('{answered} of ')")


@pytest.mark.slow
def test_two_people_answer_by_keys_reload_and_go_on_after_a_kill(tmp_path: Path) -> None:
    write_run(tmp_path)
    with browser.tabs(tmp_path / "profile", 2) as (ana, ben):
        with LabelCommand(tmp_path, "--people", "ana,ben", "--pairs", "12") as command:
            ana.open(command.address)
            ana.wait("document.querySelectorAll('li a').length === 2")
            ana.value("document.querySelector('li a').click()")
            shows(ana, 0)
            assert ana.value("document.querySelectorAll('article img, h1 script, article script').length") == 0
            assert ana.value("document.title") == "Which document answers better?"
            for answered, key in enumerate(("ArrowLeft", "ArrowRight", "1", "2", "u"), start=1):
                ana.press(key)
                shows(ana, answered)
            ana.press("Backspace")
            ana.wait("document.querySelector('button.given')?.id === 'unsure'")
            ana.press("ArrowRight")
            ana.wait("document.readyState === 'complete' && !document.querySelector('.given')")
            shows(ana, 5)
            ben.open(f"{command.address}?person=ben")
            shows(ben, 0)
            ben.press("ArrowLeft")
            shows(ben, 1)
            ana.command("Page.reload")
            shows(ana, 5)
            command.kill()
        with LabelCommand(tmp_path, "--people", "ana,ben") as command:
            ana.open(f"{command.address}?person=ana")
            shows(ana, 5)
            for dark in (False, True):
                ana.picture(tmp_path / f"narrow-{dark}.png", width=360, dark=dark)
                assert ana.value("document.documentElement.scrollWidth") <= 360
            ana.picture(tmp_path / "wide.png")
            answered = 5
            while ana.value("document.querySelector('form') !== null"):
                ana.press("2")
                answered += 1
                shows(ana, answered)
            assert "All answered" in ana.value("document.body.innerText")
            assert "answers " in command.end()
    answers = Labelling(Run("made", tmp_path)).answers
    assert len(last_answers(answers)) == len(answers) - 1  # the one that was unsure at first
