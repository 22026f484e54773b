"""A marked key in every place where one can stand: neither the screen nor anything written holds it, in any form."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.cli.test_queries import rows_of
from tests.commands import anmi, printed, refused
from tests.judging.serving import Chat
from tests.small import write_config

KEY = 'sk-marked-Z9"q/x+w=0123456789abcd'  # with characters that JSON and URLs write otherwise
FORMS = (
    KEY,
    json.dumps(KEY)[1:-1],
    quote(KEY),
    quote(KEY, safe=""),
    *(base64.b64encode(pad + KEY.encode()).decode()[4:-4] for pad in (b"", b"xxx", b"u:", b"us:")),
    "marked-Z9",
)
IN_URI = quote(KEY, safe="")
ADDRESS = f"s3://AKIDMARKED:{IN_URI}@bucket/run"
SERVER = {"base_url": "http://127.0.0.1:1/v1", "model": "m"}


def of_judge(**judge: Any) -> dict[str, Any]:
    return {"judge": {"judges": [{"kind": "api", "name": "llm", "endpoint": SERVER} | judge]}}


def of_server(**settings: Any) -> dict[str, Any]:
    return of_judge(endpoint={**SERVER, **settings})


def of_vllm(**settings: Any) -> dict[str, Any]:
    return of_judge(kind="vllm", model="m", endpoint=None, **settings)


# By what names the place in the message, the settings that hold the key.
WRONG: dict[str, dict[str, Any]] = {
    "execution.root": {"execution": {"root": ADDRESS}},
    "execution.address": {"execution": {"address": f"http://me:{IN_URI}@head:8265"}},
    "corpus.path": {"corpus": {"reader": "beir", "path": f"s3://bucket/c?secret_key={IN_URI}"}},
    "corpus.documents.1": {"corpus": {"reader": "table", "documents": ["a", f"https://h/d?token={IN_URI}"]}},
    "train.model": {"train": {"model": f"https://{IN_URI}@hub/org/model"}},
    "execution.train.storage_path": {"execution": {"train": {"storage_path": ADDRESS}}},
    "judge.judges.0.endpoint.base_url": of_server(base_url=f"https://me:{IN_URI}@host/v1"),
    "judge.judges.0.endpoint.api_key": of_server(api_key=KEY),
    "judge.judges.0.endpoint.key_env": of_server(key_env=KEY),
    "judge.judges.0.endpoint.extra.headers.authorization": of_server(
        extra={"headers": {"authorization": f"Bearer {KEY}"}}
    ),
    "judge.judges.0.endpoint.headers.x-api-key": of_server(headers={"x-api-key": KEY}),
    "judge.judges.0.api_key": of_judge(api_key=KEY),
    "judge.judges.0.engine_kwargs.hf_token": of_vllm(engine_kwargs={"hf_token": KEY}),
    "judge.judges.0.execution.environment.HF_TOKEN": of_vllm(execution={"environment": {"HF_TOKEN": KEY}}),
}
TYPED = (
    ("config", "c.yaml", "--root", ADDRESS),
    ("plan", "c.yaml", f"execution.root={ADDRESS}"),
    ("config", "c.yaml", f"corpus={{reader: beir, path: '{ADDRESS}'}}"),
    ("run", "c.yaml", f"judge.judges=[{{kind: api, endpoint: {{base_url: http://h/v1, model: m, api_key: '{KEY}'}}}}]"),
    ("run", ADDRESS),
    ("show", "some", "--root", f"s3://bucket/run?secret_key={IN_URI}"),
    ("show", "some", "--follow", "--root", ADDRESS),
    ("export", "some", "--to", ADDRESS),
    ("rate", f"https://me:{IN_URI}@host/p.csv", "--out", "o.csv"),
    ("tune", "c.yaml", f"space.train.model={{kind: choice, values: [a, '{ADDRESS}']}}"),
    ("jobs", "list", "--address", f"http://me:{IN_URI}@head:8265"),
)


def leaks(text: str) -> list[str]:
    return [form for form in FORMS if form in text]


def leaking_files(folder: Path) -> list[str]:
    """Files below a folder that hold the key, or are named by it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path) for path in files if leaks(str(path)) or leaks(path.read_bytes().decode("latin-1"))]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with settings that are valid."""
    (tmp_path / "settings").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    Path("c.yaml").write_text("corpus: {reader: pydocs, packages: []}\nexecution: {root: root}\n", encoding="utf-8")
    return tmp_path / "work"


@pytest.mark.parametrize("place", WRONG)
def test_settings_that_hold_a_key_are_refused_and_the_key_stands_nowhere(here: Path, place: str) -> None:
    file = here.parent / "settings" / "wrong.yaml"
    file.write_text(json.dumps(WRONG[place]), encoding="utf-8")
    for command in (("config", file), ("plan", file), ("judge", file, "--dry-run")):
        text = refused(*command)
        assert place in text
        assert not leaks(text)
        assert len(text) < 600
    assert leaking_files(here) == []


@pytest.mark.parametrize("words", TYPED, ids=lambda words: f"{words[0]}-{len(''.join(words))}")
def test_a_key_that_was_typed_is_refused_and_stands_nowhere(here: Path, words: tuple[str, ...]) -> None:
    text = refused(*words)
    assert not leaks(text)
    assert len(text) < 600
    assert leaking_files(here) == []


def test_an_address_with_a_key_is_told_the_option_and_the_variables(here: Path) -> None:
    said = refused("config", "c.yaml", "--root", ADDRESS)
    assert said.startswith("anmi: configuration: --root: ")
    assert "AWS_SECRET_ACCESS_KEY" in said
    assert "execution.root" in refused("config", "c.yaml", f"execution.root={ADDRESS}")


def test_a_line_of_yaml_that_cannot_be_read_is_not_shown(here: Path) -> None:
    file = here.parent / "settings" / "wrong.yaml"
    for line in (f'api_key: "{KEY}', f"api_key: @{KEY}"):
        file.write_text(line, encoding="utf-8")
        text = refused("plan", file)
        assert "line " in text
        assert not leaks(text)


def test_a_key_of_the_environment_is_sent_and_stands_nowhere(
    here: Path, chat: Chat, small_collection: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that wants the key, and answers some questions with an error that quotes it."""
    monkeypatch.setenv("MARKED", KEY)
    chat.setup(key=KEY, faults={"echo:500": 0.3})
    (here / "mine").mkdir()
    rows = [json.dumps(row) + "\n" for row in rows_of(small_collection, "corpus")[:60]]
    (here / "mine" / "corpus.jsonl").write_text("".join(rows), encoding="utf-8")
    endpoint = chat.config(max_tokens=300, key_env="MARKED").model_dump(exclude_defaults=True)
    judge = {"kind": "api", "name": "llm", "endpoint": {**endpoint, "max_tokens": 2}, "prompt": {"template": "letters"}}
    writer = {"kind": "api", "endpoint": endpoint}
    write_config(
        here / "c.yaml",
        here / "mine",
        queries={"writer": writer, "each": 1, "documents": 20},
        judge={"judges": [judge]},
        execution={"root": str(here / "root")},
    )
    said = [printed("queries", "c.yaml", "--to", "out", "--number", 10), printed("queries", "c.yaml", "--dry-run")]
    assert len(chat.log()) > 20  # some were asked again
    chat.setup(key=KEY, faults={"echo:401": 1.0})
    done = anmi("queries", "c.yaml", "seed=1", "queries.each=2", "--to", "other")
    assert done.returncode == 2
    assert "***" in done.stderr
    assert leaks("".join([*said, done.stdout, done.stderr])) == []
    assert leaking_files(here) == []
    assert (here / "root").exists()
