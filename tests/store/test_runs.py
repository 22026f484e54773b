"""Records of runs and of spending: what is no such record is one message that says what to do."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from anmi_ray.core.errors import ConfigError, DamagedError, StoreError
from anmi_ray.store import Store
from anmi_ray.store.runs import find_run
from anmi_ray.store.spend_log import Spend, SpendLog, SpendRecord
from tests.commands import refused

STAGES = {"stages": {"ingest": {"fingerprint": "f00"}}}


def test_a_hand_edited_record_of_a_run_is_refused(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.publish_json("runs/mine.json", STAGES)
    assert find_run("mine", str(tmp_path))[1] == STAGES
    store.publish("runs/mine.json", store.read("runs/mine.json").replace(b"f00", b"f01"))
    with pytest.raises(DamagedError) as caught:
        find_run("mine", str(tmp_path))
    assert "run again" in str(caught.value)


@pytest.mark.parametrize("name", ["../runs/mine", "runs/../mine", "a\0b", ""])
def test_what_cannot_be_a_runs_name_is_not_looked_for(tmp_path: Path, name: str) -> None:
    Store(str(tmp_path)).publish_json("runs/mine.json", STAGES)
    with pytest.raises(ConfigError, match="no run of that name; there are mine"):
        find_run(name, str(tmp_path))


EDITED = [
    *([], 3, {"stages": 5}, {"stages": {"ingest": "f00"}}, {"stages": {"ingest": {"fingerprint": 7}}}),
    *({"stages": {"ingest": {"fingerprint": "../f00"}}}, {"config": {"seed": "x"}}, {"config": []}, {"environment": 3}),
]


@pytest.mark.parametrize("content", EDITED)
def test_what_is_no_record_of_a_run_is_refused(tmp_path: Path, content: Any) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine.json").write_text(json.dumps(content))  # without a checksum, as of an older version
    with pytest.raises(DamagedError, match="not the record of a run"):
        find_run("mine", str(tmp_path))


@pytest.mark.parametrize(
    ("content", "lacks"), [({}, "stages"), (STAGES, "environment"), ({**STAGES, "environment": {}}, "processor")]
)
def test_a_record_that_lacks_a_part_is_refused_where_it_is_asked_for(tmp_path: Path, content: Any, lacks: str) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine.json").write_text(json.dumps(content))
    said = refused("show", "mine", "--root", tmp_path)
    assert f"{tmp_path}/runs/mine.json: not the record of a run: it has no {lacks}\n  remedy: delete it" in said


CHANGES = [('"dollars": 2.5', '"dollars": 0.5'), ('"questions": 17', '"questions": "17"')]


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_changed_money_is_refused(tmp_path: Path, before: str, after: str) -> None:
    log = SpendLog(Store(str(tmp_path)), "campaign")
    record = SpendRecord("judge", questions=17, spend=Spend(requests=17, dollars=2.5))
    log.write("session", record)
    assert log.records() == [record]
    path = tmp_path / "spend" / "campaign" / "session.json"
    path.write_text(path.read_text().replace(before, after))
    with pytest.raises(StoreError) as caught:
        log.records()
    assert caught.value.remedy == "delete it: what it had spent is forgotten"
    assert str(path) in str(caught.value)


def test_money_of_an_older_version_is_numbers(tmp_path: Path) -> None:
    log = SpendLog(Store(str(tmp_path)), "campaign")
    record = asdict(SpendRecord("judge", questions=17))
    path = tmp_path / "spend" / "campaign" / "session.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(record))
    assert log.records() == [SpendRecord("judge", questions=17)]
