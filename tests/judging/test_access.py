"""Where texts may go, and that a key shows itself nowhere: a canary key, looked for in all that comes out."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import pickle
import traceback
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from anmi_ray.config.endpoint import EndpointConfig, SamplingConfig
from anmi_ray.core.errors import AnmiError, ConfigError, JudgeError
from anmi_ray.judging.http.client import ChatClient
from anmi_ray.judging.http.connections import Key, check_address, is_internal, read_key
from anmi_ray.judging.http.dispatch import Result, ask_all
from tests.judging.serving import Chat, ask, one_by_one

CANARY = 'sk-canary-"77/x+y=\\z'  # with characters that JSON and URLs write differently


FAULTS = ("echo:400", "echo:401", "echo:404", "echo:500", "echo:429", "echotext", "reset", "hang", "invalid")


def config(**settings: object) -> EndpointConfig:
    return EndpointConfig.model_validate({"base_url": "http://127.0.0.1:1/v1", "model": "m", **settings})


def check(**settings: object) -> None:
    asyncio.run(check_address(config(**settings)))


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "10.1.2.3", "172.31.0.1", "192.168.0.9", "[::1]", "[fd00::1]"]
)
def test_loopback_and_private_addresses_are_internal(host: str) -> None:
    check(base_url=f"http://{host}:8000/v1")


@pytest.mark.parametrize(
    "host", ["8.8.8.8", "172.32.0.1", "169.254.169.254", "0.0.0.0", "[2606:4700::1]", "[::ffff:8.8.8.8]"]
)
def test_other_addresses_are_refused_unless_allowed(host: str) -> None:
    with pytest.raises(ConfigError, match="allow_external is false") as raised:
        check(base_url=f"https://{host}/v1")
    assert "allow_external: true" in str(raised.value)
    check(base_url=f"https://{host}/v1", allow_external=True)


def test_a_name_counts_as_what_it_resolves_to(monkeypatch: pytest.MonkeyPatch) -> None:
    check(base_url="http://localhost:8000/v1")
    with pytest.raises(JudgeError, match="does not resolve"):
        check(base_url="http://no-such-host.invalid/v1")

    async def both(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [(0, 0, 0, "", ("10.0.0.1", 0)), (0, 0, 0, "", ("9.9.9.9", 0))]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", both)
    with pytest.raises(ConfigError, match=r"9\.9\.9\.9"):
        check(base_url="http://half-inside.example/v1")


def test_a_key_does_not_leave_unencrypted() -> None:
    with pytest.raises(ConfigError, match="unencrypted"):
        check(base_url="http://8.8.8.8/v1", allow_external=True, key_env="SOME_KEY")


def test_mapped_addresses_are_looked_through() -> None:
    assert is_internal("::ffff:10.0.0.1")
    assert not is_internal("fe80::1%eth0")


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("base_url", f"https://user:{CANARY}@host/v1", "user, password"),
        ("base_url", f"https://host/v1?key={quote(CANARY)}", "user, password or query"),
        ("base_url", "https://host:sk-canary-77/v1", "http or https"),
        ("base_url", "ftp://host/v1", "http or https"),
        ("base_url", "https://host/v1/chat/completions", "end before"),
        ("key_env", CANARY, "name of an environment variable"),
        ("key_env", "sk_canary_key", "name of an environment variable"),
        ("extra", {"model": "other"}, "not in extra"),
        ("cached_price", 1.0, "needs input_price"),
        ("input_price", 1.0, "together"),
        ("logprobs", 21, "less than or equal to 20"),
    ],
)
def test_mistakes_are_named_without_the_value(setting: str, value: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message) as raised:
        config(**{setting: value})
    assert "canary" not in str(raised.value)


def test_only_sampling_may_change_an_answer() -> None:
    given = config(temperature=0.7, extra={"reasoning_effort": "low"}, concurrency=3)
    assert type(given.sampling) is SamplingConfig
    assert given.sampling.model_dump(exclude_defaults=True) == {
        "model": "m",
        "temperature": 0.7,
        "extra": {"reasoning_effort": "low"},
    }


def test_no_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MISSING_KEY", raising=False)
    for value in (None, "", "  \n"):
        if value is not None:
            monkeypatch.setenv("MISSING_KEY", value)
        with pytest.raises(ConfigError, match="MISSING_KEY is not set"):
            read_key(config(key_env="MISSING_KEY"))
    monkeypatch.setenv("MISSING_KEY", "sk-canary two lines\nof it")
    with pytest.raises(ConfigError, match="blanks") as raised:
        read_key(config(key_env="MISSING_KEY"))
    assert "canary" not in str(raised.value)


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=80), st.binary(), st.binary())
def test_every_form_of_a_key_is_wiped(value: str, before: bytes, after: bytes) -> None:
    key = Key(value)
    encoded = base64.b64encode(value.encode()).rstrip(b"=")
    for form in (value.encode(), json.dumps(value)[1:-1].encode(), quote(value, safe="").encode(), encoded):
        assert form not in key.scrub(before + form + after) or form in b"***"
    assert value not in repr(key)
    assert value not in repr(vars(type(key)))
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(key)


def test_a_word_instead_of_a_key_leaves_answers_alone() -> None:
    assert Key("EMPTY").scrub(b"the set is EMPTY") == b"the set is EMPTY"
    assert Key(None).headers == {}


@pytest.mark.slow
def test_the_key_shows_itself_nowhere(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers echo it in errors and answers; results, logs, errors with their causes, and reprs are searched."""
    monkeypatch.setenv("CANARY_KEY", CANARY)
    spoken = io.StringIO()
    handler = logging.StreamHandler(spoken)
    root = logging.getLogger()
    levels = {name: logging.getLogger(name).level for name in ("", "httpx2", "httpcore2", "anmi_ray", "asyncio")}
    root.addHandler(handler)
    out: list[object] = []
    results: list[Result] = []

    async def one(text: str) -> None:
        settings = chat.config(key_env="CANARY_KEY", retries=1, timeout_s=1.0 if "hang" in text else 20.0)
        out.extend([settings, settings.model_dump_json(), settings.model_dump()])
        try:
            async with ChatClient(settings) as client:
                out.extend([client, vars(client), client.spend, vars(client._connections)])
                await ask_all(client, one_by_one([(b"0", ask("fine")), (b"1", ask(f"script {text}"))]), results.extend)
        except AnmiError as error:
            whole = "".join(traceback.format_exception(error))
            out.extend([error, str(error), repr(error.args), whole, pickle.dumps(error), repr(error.__context__)])

    try:
        for name in levels:
            logging.getLogger(name).setLevel(logging.DEBUG)
        for text in FAULTS:
            asyncio.run(one(text), debug=True)
    finally:
        root.removeHandler(handler)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
    out.extend([results, spoken.getvalue()])
    said = "\n".join(repr(thing) for thing in out)
    assert "***" in said  # the echoes did arrive
    assert "httpcore2" in said or "POST" in said  # and the loggers did speak
    for form in (CANARY, repr(CANARY)[1:-1], quote(CANARY, safe=""), "canary"):
        assert form not in said.replace("CANARY_KEY", "").replace("test-the-key", "")
