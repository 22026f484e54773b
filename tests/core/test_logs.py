"""Log lines: JSON whatever they hold, with the context of the code that runs, and no secret in them."""

from __future__ import annotations

import base64
import io
import json
import logging
import threading
from collections.abc import Iterator
from contextvars import copy_context
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anmi_ray.config.endpoint import EndpointConfig
from anmi_ray.core import logs, redaction
from anmi_ray.core.errors import JudgeError
from anmi_ray.judging.http.connections import read_key

CANARY = 'sk-canary-"77/x+y=\\z'  # with characters that JSON and URLs write differently
LOG = logging.getLogger("anmi_ray.tests")


class Said(io.StringIO):
    """What was written to a stream."""

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.getvalue().splitlines()]


@pytest.fixture
def said() -> Iterator[Said]:
    """This package's lines; the logger is left as it was."""
    logger = logging.getLogger(logs.OURS)
    before = logger.handlers[:], logger.level, logger.propagate
    found = Said()
    logs.set_up(found)
    yield found
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def test_a_line_says_when_what_and_where(said: Said) -> None:
    with logs.bound(run="small", stage="judge", judge=None), logs.bound(bucket=3):
        LOG.info("chunk ends", extra={"questions": 7})
    (line,) = said.lines()
    assert list(line)[:7] == ["time", "level", "logger", "message", "run", "stage", "bucket"]
    assert abs((datetime.now(UTC) - datetime.fromisoformat(line.pop("time"))).total_seconds()) < 60
    where = {"run": "small", "stage": "judge", "bucket": 3, "questions": 7}
    assert line == {"level": "info", "logger": "anmi_ray.tests", "message": "chunk ends", **where}


@given(st.text(), st.dictionaries(st.text(st.characters(codec="ascii", categories=["Ll"]), min_size=1), st.floats()))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_event_is_one_line_of_json(said: Said, text: str, facts: dict[str, float]) -> None:
    before = len(said.lines())
    LOG.warning("notice", extra={"text": text, "facts": facts})
    (line,) = said.lines()[before:]
    assert line["facts"].keys() == facts.keys()


def test_context_nests_ends_and_goes_along_to_a_thread_that_takes_it(said: Said) -> None:
    with logs.bound(run="a", stage="one"):
        with logs.bound(stage="two"):
            assert logs.context() == {"run": "a", "stage": "two"}
        assert logs.context() == {"run": "a", "stage": "one"}
        taken = threading.Thread(target=copy_context().run, args=(LOG.info, "taken"))
        bare = threading.Thread(target=LOG.info, args=("bare",))
    for thread in (taken, bare):
        thread.start()
        thread.join()
    assert [(line["message"], line.get("run")) for line in said.lines()] == [("taken", "a"), ("bare", None)]


def test_a_span_begins_and_ends(said: Said) -> None:
    with logs.Span(LOG, "bucket", bucket=2) as span:
        span.told(rows=[{"unit": "pairs", "rows_in": 3}])
    begins, ends = said.lines()
    assert (begins["message"], ends["message"]) == ("bucket begins", "bucket ends")
    assert begins["bucket"] == ends["bucket"] == 2
    assert ends["seconds"] >= 0.0
    assert ends["rows"] == [{"unit": "pairs", "rows_in": 3}]
    assert logs.context() == {}


@pytest.mark.parametrize("traces", [True, False])
def test_a_span_says_its_error_and_lets_it_pass(said: Said, traces: bool) -> None:
    with pytest.raises(ValueError, match="broken"), logs.Span(LOG, "bucket", traces=traces, bucket=2):
        raise ValueError("broken")
    line = said.lines()[-1]
    assert (line["level"], line["message"], line["bucket"]) == ("error", "bucket fails", 2)
    assert (line["error_type"], line["error"]) == ("ValueError", "broken")
    assert ("Traceback" in line.get("exception", "")) is traces


def test_an_interruption_is_no_error(said: Said) -> None:
    with pytest.raises(KeyboardInterrupt), logs.Span(LOG, "run", run="a"):
        raise KeyboardInterrupt
    assert [line["level"] for line in said.lines()] == ["info", "warning"]
    logs.set_up(io.StringIO())  # again: another stream instead
    LOG.info("there")
    assert len(said.lines()) == 2


def refuse(shown: str) -> None:
    try:
        raise OSError(f"illegal header Bearer {shown}")
    except OSError as error:
        raise JudgeError(f"refused: {shown}", "judge m", f"see {shown}") from error


def test_a_key_that_was_read_shows_in_no_line(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint's error that quotes the key, in its message, in what caused it, and in facts."""
    monkeypatch.setenv("UNSUSPICIOUS", CANARY)
    config = EndpointConfig.model_validate(
        {"base_url": "https://judge.example/v1", "model": "m", "key_env": "UNSUSPICIOUS", "allow_external": True}
    )
    read_key(config)
    shown = [CANARY, json.dumps(CANARY), quote(CANARY, safe=""), base64.b64encode(CANARY.encode()).decode()]
    for form in shown:
        with pytest.raises(JudgeError), logs.Span(LOG, "chunk", traces=True, judge="m"):
            refuse(form)
        LOG.info("notice", extra={"text": form, "inner": [{"deep": form}]})
    written = said.getvalue()
    assert "canary" not in written
    assert base64.b64encode(b"sk-canary-").decode()[:12] not in written
    assert written.count("***") >= len(shown) * 4
    assert len(said.lines()) == len(shown) * 3


def test_secrets_of_the_environment_and_of_addresses_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "abcd/efgh+1234")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/etc/ray/token")
    assert redaction.scrub("key abcd/efgh+1234 of s3://name:word@bucket/x") == "key *** of s3://***@bucket/x"
    assert redaction.scrub("read /etc/ray/token, http://host:8000/v1") == "read /etc/ray/token, http://host:8000/v1"
