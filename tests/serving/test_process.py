"""`anmi serve` as a user starts it: a process on a port, a real model, its scores, its mistakes, its end."""

from __future__ import annotations

import gc
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil
import pytest

import anmi_ray
from anmi_ray.core import environment
from anmi_ray.models.late_interaction import LateInteraction
from tests.commands import anmi, refused
from tests.models.tiny import WORDS, write_tiny_bert
from tests.serving.running import KEY, READY_S, Served, serving

TOLERANCE = 1e-5
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("service")
    LateInteraction.load(str(write_tiny_bert(folder / "bert", 0))).export(folder / "late")
    with serving(folder / "late", folder / "errors", "--max-waiting", "1500") as found:
        yield found


def wait_for(served: Served) -> None:
    end = time.monotonic() + READY_S
    while served.post("/v1/rerank", {"query": "word1", "documents": ["word2"]})[0] != 200:
        assert time.monotonic() < end
        time.sleep(0.2)


def texts_of(rng: np.random.Generator, count: int) -> list[str]:
    return [" ".join(rng.choice(WORDS, rng.integers(0, 70))) for _ in range(count)]


def best_of(served: Served, query: str, texts: list[str], count: int) -> list[int]:
    scores = served.scores(query, texts)
    return sorted(range(len(texts)), key=lambda at: -scores[at])[:count]


def test_who_leaves_takes_no_others_answers_along(served: Served) -> None:  # the first: its request begins the batches
    rng = np.random.default_rng(8)
    sent = json.dumps({"query": "word1", "documents": [" ".join(rng.choice(WORDS, 300)) for _ in range(1000)]})
    place = urlsplit(served.address)
    with ThreadPoolExecutor(3) as pool, closing(http.client.HTTPConnection(str(place.hostname), place.port)) as leaving:
        leaving.request(
            "POST", "/v1/rerank", sent, {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        )
        time.sleep(0.3)
        asked = [
            pool.submit(served.post, "/v1/rerank", {"query": "word1", "documents": ["word2"] * 40}) for _ in range(3)
        ]
        time.sleep(0.3)
        leaving.close()
        assert [one.result()[0] for one in asked] == [200] * 3


def test_scores_are_those_of_rerank_whatever_else_is_in_the_batch(served: Served) -> None:
    rng = np.random.default_rng(0)
    asked = [(f"word{q} word{q + 1}", texts_of(rng, int(rng.integers(1, 200)))) for q in range(12)]
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda one: served.scores(*one), asked))
    for (query, texts), scores in zip(asked, found, strict=True):
        ranking = anmi_ray.rerank(served.model, query, texts)
        wanted = dict(zip(ranking["index"].to_pylist(), ranking["score"].to_pylist(), strict=True))
        np.testing.assert_allclose(scores, [wanted[index] for index in range(len(texts))], atol=TOLERANCE)


def test_embeddings_are_the_students_pooled_vectors(served: Served) -> None:
    texts = texts_of(np.random.default_rng(1), 5)
    student = LateInteraction.load(str(served.model))
    wanted = student.vectors(student.pairs.of_documents(texts), np.arange(5))
    status, found = served.post("/v1/embeddings", {"input": texts})
    assert status == 200
    np.testing.assert_allclose([row["embedding"] for row in found["data"]], wanted, atol=TOLERANCE)


@pytest.fixture
def closed_late() -> Iterator[None]:
    """Clients of others keep their connections open until nobody knows them, which Python warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of their own code too
        yield
        gc.collect()


@pytest.mark.usefixtures("closed_late")
def test_coheres_client_ranks_and_hears_refusals(served: Served) -> None:
    cohere = pytest.importorskip("cohere")
    texts = texts_of(np.random.default_rng(5), 9)
    client = cohere.ClientV2(api_key=KEY, base_url=served.address)
    found = client.rerank(model="any", query="word1", documents=texts, top_n=3)
    assert [row.index for row in found.results] == best_of(served, "word1", texts, 3)
    first = cohere.Client(api_key=KEY, base_url=served.address)
    older = first.rerank(query="word1", documents=[{"text": text} for text in texts], return_documents=True)
    assert [row.document.text for row in older.results] == [texts[at] for at in best_of(served, "word1", texts, 9)]
    with pytest.raises(cohere.errors.UnauthorizedError):
        cohere.ClientV2(api_key="another", base_url=served.address).rerank(model="any", query="q", documents=["a"])
    with pytest.raises(cohere.errors.UnprocessableEntityError):
        client.rerank(model="any", query="", documents=["a"])


@pytest.mark.usefixtures("closed_late")
def test_openais_client_has_the_vectors(served: Served) -> None:
    openai = pytest.importorskip("openai")
    texts = texts_of(np.random.default_rng(7), 3)
    client = openai.OpenAI(api_key=KEY, base_url=f"{served.address}/v1")
    found = client.embeddings.create(model="any", input=texts)  # it asks for base 64, and reads it
    _, wanted = served.post("/v1/embeddings", {"input": texts})
    assert [row.embedding for row in found.data] == [row["embedding"] for row in wanted["data"]]


def test_the_key_is_asked_for_and_never_shown(served: Served) -> None:
    status, found = served.post("/rerank", {"query": "q", "texts": ["a"]}, key="another")
    assert [status, found["error"]["type"]] == [401, "authentication_error"]
    processes = [served.process.pid, *(one.pid for one in psutil.Process(served.process.pid).children(recursive=True))]
    assert not any(KEY in " ".join(psutil.Process(pid).cmdline()) for pid in processes)
    assert KEY not in served.errors.read_text()


def test_a_crowd_is_served_or_told_to_come_again(served: Served) -> None:
    texts = texts_of(np.random.default_rng(2), 150)
    sent = {"query": "word1", "documents": texts}
    with ThreadPoolExecutor(40) as pool:
        found = list(pool.map(lambda _: served.post("/v2/rerank", sent)[0], range(80)))
    assert set(found) <= {200, 429}
    assert 200 in found
    assert served.post("/v2/rerank", sent)[0] == 200


def test_a_killed_process_costs_no_more_than_the_requests_under_way(served: Served) -> None:
    sent = {"query": "word1", "documents": texts_of(np.random.default_rng(3), 300)}
    (victim,) = served.processes()
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(served.post, "/v1/rerank", sent) for _ in range(8)]
        os.kill(victim, signal.SIGKILL)
        assert {one.result()[0] for one in asked} <= {200, 429, 503}
    wait_for(served)
    assert victim not in served.processes()


def test_sigterm_ends_it_after_the_answers_under_way(served: Served) -> None:  # the last: the service is gone then
    sent = {"query": "word1", "documents": texts_of(np.random.default_rng(4), 300)}
    found: list[int] = []

    def ask() -> None:
        while not found or found[-1] == 200:
            found.append(served.post("/v1/rerank", sent)[0])

    asking = [threading.Thread(target=ask) for _ in range(3)]
    for one in asking:
        one.start()
    while len(found) < 3:
        time.sleep(0.01)
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(READY_S) == 0
    for one in asking:
        one.join(READY_S)
    assert set(found) <= {200, 503}
    assert 503 in found
    assert served.errors.read_text() == "", "nothing of Ray's is on the screen"


def test_mistakes_are_told_before_ray_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_tiny_bert(tmp_path / "model")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}: cannot listen: Address already in use" in refused("serve", model, "--port", port)
    assert "no.such.host" in refused("serve", model, "--host", "no.such.host")
    monkeypatch.delenv("NOBODYS_KEY", raising=False)
    assert "key NOBODYS_KEY: the environment variable is not set" in refused("serve", model, "--key-env", "NOBODYS_KEY")
    (tmp_path / "empty").mkdir()
    assert "holds no model" in refused("serve", tmp_path / "empty", "--port", 0)
    assert "no run" in refused("serve", "quickstrat", "--port", 0, "--root", tmp_path)
    (model / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:5000])
    assert "cannot be loaded" in refused("serve", model, "--port", 0)
    assert anmi("serve", model, "--timeout-s", 0).returncode == 2


def test_without_ray_serve_the_install_command_is_told() -> None:
    code = "import sys; sys.modules['fastapi'] = None\nfrom anmi_ray.cli import main; main(['serve', 'model'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert environment.install("serve") in done.stderr
    assert "Traceback" not in done.stderr
