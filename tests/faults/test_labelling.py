"""`anmi label` killed while people answer: what it acknowledged is kept, and the same command goes on from there."""

from __future__ import annotations

import http.client
import json
import threading
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from anmi_ray.api.labelling import Labelling
from anmi_ray.api.runs import Run
from anmi_ray.labelling.answers import last_answers
from tests.labelling.command import LabelCommand
from tests.labelling.made import write_run

pytestmark = pytest.mark.faults
_PAIRS = 40


def _ask(address: str, said: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if said is None else json.dumps(said).encode()
    with urlopen(Request(address, data, {"Content-Type": "application/json"}), timeout=30) as answer:
        return json.load(answer)


def _work(address: str, person: str, acknowledged: list[int], enough: threading.Event) -> None:
    """Answer one pair after another until all is answered or the command is gone."""
    try:
        seen = _ask(f"{address}pair?person={person}")
        while "left" in seen:
            seen = _ask(f"{address}answer", {"person": person, "at": seen["at"], "side": "left"})
            acknowledged.append(seen["answered"])
            if len(acknowledged) >= 10:
                enough.set()
    except (URLError, http.client.HTTPException, ConnectionError):
        pass
    finally:
        enough.set()


def test_killed_again_and_again_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    write_run(tmp_path)
    acknowledged: dict[str, list[int]] = {"ana": [], "ben": []}
    for kill in (True, True, False):
        with LabelCommand(tmp_path, "--people", "2", "--pairs", str(_PAIRS)) as command:
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
