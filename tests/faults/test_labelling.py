"""`anmi label` killed while people answer: what it acknowledged is kept, and the same command goes on from there."""

from __future__ import annotations

import http.client
import threading
from pathlib import Path

import pytest

from anmi_ray.api.labelling import Labelling
from anmi_ray.api.runs import Run
from anmi_ray.labelling.answers import last_answers
from tests.labelling.asking import ask, look
from tests.labelling.command import LabelCommand
from tests.labelling.made import write_run

pytestmark = pytest.mark.faults
_PAIRS = 40


def _work(address: str, person: str, acknowledged: list[int], enough: threading.Event) -> None:
    """Answer one pair after another until all is answered or the command is gone."""
    try:
        shown = look(address, person)
        while shown.at is not None:
            sent = ask(address, "POST", person=person, at=shown.at, side="left")
            assert sent.status == 303, sent.body
            acknowledged.append(shown.answered + 1)
            if len(acknowledged) >= 10:
                enough.set()
            shown = look(address, person)
            assert shown.answered == acknowledged[-1]
    except (http.client.HTTPException, OSError):
        pass
    finally:
        enough.set()


def test_killed_again_and_again_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    write_run(tmp_path)
    acknowledged: dict[str, list[int]] = {"ana": [], "ben": []}
    for kill in (True, True, False):
        with LabelCommand(tmp_path, "--people", "ana,ben", "--pairs", str(_PAIRS)) as command:
            told = {person: list[int]() for person in acknowledged}
            enough = threading.Event()
            threads = [
                threading.Thread(target=_work, args=(command.address, person, some, enough))
                for person, some in told.items()
            ]
            for thread in threads:
                thread.start()
            if kill:
                assert enough.wait(60)
                command.kill()
            for thread in threads:
                thread.join(60)
            for person, some in told.items():
                acknowledged[person] += some
    answers = Labelling(Run("made", tmp_path)).answers
    # an answer that was kept but not acknowledged is no loss: the page shows it as answered
    assert len(answers) == len(last_answers(answers)) == _PAIRS + _PAIRS // 5
    for person, counts in acknowledged.items():
        assert counts == sorted(set(counts))  # what was acknowledged was there after every kill
        assert counts[-1] == sum(who == person for who, _ in last_answers(answers))
