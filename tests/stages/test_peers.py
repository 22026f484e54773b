"""Other rerankers beside the trained one: what their artifacts hold, what failed, and what is never bought twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from anmi_ray.config.base import result_settings
from anmi_ray.config.evaluate import PeerConfig, RerankConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import validate
from anmi_ray.config.train import Pooling, Student, TrainConfig
from anmi_ray.core.errors import ConfigError, JudgeError
from anmi_ray.core.identity import ID, doc_id, query_id, text_hash
from anmi_ray.core.records import METRIC, QUERY, REJECT, RUN, TEXT_OF
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.late_interaction import LateInteraction
from anmi_ray.models.loading import resolve as resolve_model
from anmi_ray.models.pooling import draws_head
from anmi_ray.pipeline.resolve import Resolved, resolve
from anmi_ray.planning import plan
from anmi_ray.planning.plan import costs
from anmi_ray.runtime.costs import StageCost
from anmi_ray.stages import by_judges
from anmi_ray.stages.rerank import config_of, held_out, start_of
from anmi_ray.stages.rerank.held_out import artifact_of, of_bucket
from anmi_ray.stages.rerank.ranking import pairs_of, rerank
from anmi_ray.stages.rerank.scoring import Asked
from anmi_ray.store import Artifact, Flow, Store
from anmi_ray.store.folders import seal_folder
from tests.judging.rerank_server import Served, serving
from tests.models.test_token_vectors import write_pylate
from tests.models.tiny import WORDS, write_tiny_bert, write_tiny_classifier, write_tiny_decoder

DEPTH = 4


@pytest.fixture
def server() -> Iterator[Served]:
    with serving() as served:
        yield served


class World:
    """One bucket of held-out queries, each with five documents in the hybrid's order; documents hold a number."""

    device: Literal["cpu", "cuda"] = "cpu"

    def __init__(self, folder: Path, queries: list[str], without: str | None = None, dev: Sequence[str] = ()) -> None:
        self.store = Store(str(folder))
        self.ingest, self.retrieve = Artifact(self.store, "ingest", "i"), Artifact(self.store, "retrieve", "r")
        columns = {"query_id": list(map(query_id, queries)), "text_hash": list(map(text_hash, queries))}
        splits = ["dev" if query in dev else "test" for query in queries]
        self.queries = QUERY.table({**columns, "external_id": queries, "text": queries, "split": splits})
        rows = [(query, d) for query in queries if query != without for d in range(5)]
        random = np.random.default_rng(0)
        texts = [f"{random.integers(-99, 99)} {' '.join(random.choice(WORDS, 6))}" for _ in rows]
        names = [f"{query} {d}" for query, d in rows]
        docs, hashes = list(map(doc_id, names)), [text_hash("", text) for text in texts]
        ranks = {"rank": [d + 1 for _, d in rows], "score": [1.0 / (d + 1) for _, d in rows]}
        ids = {"query_id": [query_id(query) for query, _ in rows], "doc_id": docs}
        run = RUN.table({**ids, "system": ["hybrid"] * len(rows), **ranks})
        self.run = run.sort_by([("query_id", "ascending"), ("rank", "ascending")])
        no_title = {"title": [""] * len(rows)}
        self.texts = TEXT_OF.table(
            {"doc_id": docs, "external_id": names, "text_hash": hashes, "text": texts, **no_title}
        )
        self.ingest.publish_part("queries", 0, self.queries, QUERY)
        self.retrieve.publish_part("runs", 0, self.run, RUN)
        self.retrieve.publish_part("texts", 0, self.texts, TEXT_OF)

    def score(self, peer: PeerConfig, name: str = "made") -> tuple[Artifact, list[Flow]]:
        artifact = Artifact(self.store, "peer", name)
        return artifact, self.commit(artifact, peer)

    def commit(self, artifact: Artifact, peer: PeerConfig, trained: Artifact | None = None) -> list[Flow]:
        load = partial(held_out._load, peer, trained, self.device)  # pyright: ignore[reportPrivateUsage]
        return held_out._peer_bucket(artifact, 0, self.asked(peer), load, None, peer)  # pyright: ignore[reportPrivateUsage]

    def asked(self, peer: PeerConfig) -> Asked:
        return Asked(self.retrieve, self.ingest, DEPTH, held_out.HELD_OUT if peer.dev else held_out.HELD_OUT[1:])

    @property
    def top(self) -> pa.Table:
        return self.run.filter(pc.less_equal(self.run["rank"], DEPTH))


def endpoint(server: Served, name: str = "server", **more: object) -> PeerConfig:
    return PeerConfig.model_validate({"name": name, "endpoint": server.config().model_dump(), **more})


@pytest.mark.parametrize("colbert", [False, True])
def test_a_model_scores_as_it_does_alone(tmp_path: Path, colbert: bool) -> None:
    world = World(tmp_path / "store", ["one", "two", "three"])
    if colbert:
        folder = write_pylate(tmp_path / "model", write_tiny_bert(tmp_path / "tiny"))
    else:
        folder = write_tiny_classifier(tmp_path / "model", ["relevance"])
    artifact, flows = world.score(PeerConfig(name="tiny", model=str(folder), precision="float32"))
    alone = (LateInteraction if colbert else CrossEncoder).load(str(folder), threads=1)
    run = of_bucket(artifact, "tiny", 0)
    assert run.equals(rerank(world.top, world.queries, world.texts, alone, "tiny"))
    assert flows == [Flow("test queries", 3, 3)]
    assert set(run["rank"].to_pylist()) == set(range(1, DEPTH + 1))
    assert len(set(run["score"].to_pylist())) > DEPTH


def test_a_model_without_a_scoring_head_is_refused_and_the_untrained_is_the_start_of_training(tmp_path: Path) -> None:
    world = World(tmp_path / "store", ["one", "two"])
    folder = write_tiny_bert(tmp_path / "model")
    with pytest.raises(ConfigError, match="has no scoring head"):
        world.score(PeerConfig(name="bare", model=str(folder)))
    train = TrainConfig(model=str(folder), max_tokens=32, seed=5, pooling="mean")
    untrained = PeerConfig(name="bare", untrained=True).started(train)
    artifact, _ = world.score(untrained)
    start = CrossEncoder.load(str(folder), pooling="mean", max_tokens=32, seed=5, threads=1, dtype="auto")
    scores = start.score(*pairs_of(world.top, world.queries, world.texts))
    run = artifact.read_part("runs", 0, RUN)
    assert sorted(run["score"].to_pylist()) == sorted(scores.astype(np.float64).tolist())


@pytest.mark.parametrize("student", ["late-interaction", "bi-encoder"])
def test_the_start_scores_dev_and_test_as_it_would_as_an_untrained_peer(tmp_path: Path, student: Student) -> None:
    world = World(tmp_path / "store", ["one", "two", "three"], dev=["two"])
    folder = str(write_tiny_bert(tmp_path / "model"))
    experiment = Experiment.model_validate(
        {"train": {"model": folder, "student": student, "max_tokens": 32}, "rerank": {"precision": "float32"}}
    )
    start = start_of(config_of(experiment))
    assert start is not None
    artifact, flows = world.score(start)
    assert flows == [Flow("held-out queries", 3, 3)]
    kind = LateInteraction if student == "late-interaction" else BiEncoder
    alone = kind.load(folder, max_tokens=32, threads=1)
    assert of_bucket(artifact, "start", 0).equals(rerank(world.top, world.queries, world.texts, alone, "start"))
    untrained = PeerConfig(name="bare", untrained=True).started(experiment.train, experiment.rerank)
    before, flows = world.score(untrained, "before")
    assert flows == [Flow("test queries", 2, 2)]
    run = of_bucket(artifact, "p", 0)
    assert of_bucket(before, "p", 0).equals(
        run.filter(pc.not_equal(run["query_id"], pa.scalar(query_id("two"), ID))).combine_chunks()
    )
    seeded = experiment.model_copy(update={"train": experiment.train.model_copy(update={"seed": 7})})
    assert start_of(config_of(seeded)) == start
    off = Experiment.model_validate({"rerank": {"start": False}, "train": {"student": student}})
    assert start_of(config_of(off)) is None


def test_a_head_that_would_be_drawn_is_known_without_its_weights(tmp_path: Path) -> None:
    bare = write_tiny_bert(tmp_path / "bare")
    CrossEncoder.load(str(bare), pooling="mean").export(tmp_path / "mean")
    CrossEncoder.load(str(bare)).export(tmp_path / "cls")
    decoder = write_tiny_decoder(tmp_path / "decoder", "qwen3")
    CrossEncoder.load(str(decoder), pooling="last").export(tmp_path / "last")
    drawn: dict[tuple[str, Pooling], bool] = {
        ("bare", "cls"): True,
        ("bare", "mean"): True,
        ("cls", "cls"): False,
        ("cls", "mean"): True,
        ("mean", "mean"): False,
        ("mean", "cls"): True,
        ("decoder", "last"): True,
        ("decoder", "yes-no"): False,
        ("last", "last"): False,
    }
    for (name, pooling), expected in drawn.items():
        source = resolve_model(str(tmp_path / name))
        assert CrossEncoder.load(source, pooling=pooling).drawn_head == expected, (name, pooling)
        assert draws_head(source, "cross-encoder", pooling) == expected, (name, pooling)
        train = {"model": source.path_or_id, "pooling": pooling}
        start = start_of(config_of(Experiment.model_validate({"train": train})))
        assert (start is None) == expected
    assert not draws_head(resolve_model(str(bare)), "bi-encoder", "cls")


def test_a_partner_scores_dev_queries_and_what_it_is_called_by(tmp_path: Path) -> None:
    folder = str(write_tiny_classifier(tmp_path / "model", ["relevance"]))
    given = {"rerank": {"peers": [{"name": "cross", "model": folder}, {"name": "other", "model": folder}]}}

    def made(**of_evaluate: object) -> tuple[dict[str, str], list[bool]]:
        settings = Experiment.model_validate({**given, "evaluate": of_evaluate})
        found = {name: one.fingerprint for name, one in resolve(settings, "content").items()}
        return found, [peer.dev for peer in config_of(settings).peers]

    plain, partner = made(), made(partners=["dense", "cross"])
    assert (plain[1], partner[1]) == ([False, False], [True, False])
    assert {name for name in plain[0] if plain[0][name] != partner[0][name]} == {"rerank", "evaluate", "report"}
    assert made(partners=["dense", "cross"], fusion=False)[0]["rerank"] == plain[0]["rerank"]
    world = World(tmp_path / "store", ["one", "two"])
    once, dev = (PeerConfig(name="cross", model=folder, dev=dev) for dev in (False, True))
    assert artifact_of(once, world.retrieve, world.ingest, DEPTH) != artifact_of(
        dev, world.retrieve, world.ingest, DEPTH
    )


def test_an_endpoint_ranks_by_its_scores(tmp_path: Path, server: Served) -> None:
    world = World(tmp_path, ["one", "two", "three"])
    artifact, flows = world.score(endpoint(server))
    assert flows == [Flow("test queries", 3, 3)]
    text = dict(zip(world.texts["doc_id"].to_pylist(), world.texts["text"].to_pylist(), strict=True))
    for row in artifact.read_part("runs", 0, RUN).to_pylist():
        assert row["score"] == float(text[row["doc_id"]].split()[0])
    assert sorted(server.queries()) == ["one", "three", "two"]


def test_a_query_that_fails_is_missing_and_said(tmp_path: Path, server: Served) -> None:
    world = World(tmp_path, ["one", "script nan", "empty"], without="empty")
    artifact, flows = world.score(endpoint(server))
    assert flows == [Flow("test queries", 3, 1, 2)]
    flow, why = held_out.refused(artifact, "mine", 0)
    assert (flow.unit, flow.rejected) == ("test queries of mine", 2)
    rows = {row["key"]: (row["place"], row["reason"]) for row in why.to_pylist()}
    assert rows == {
        query_id("script nan").hex(): ("rerank mine", "score is not a finite number"),
        query_id("empty").hex(): ("rerank mine", "no candidate"),
    }
    assert "relevance_score is nan" in "".join(why["detail"].to_pylist())
    assert set(of_bucket(artifact, "mine", 0)["query_id"].to_pylist()) == {query_id("one")}


def test_what_was_bought_is_kept_when_the_bucket_has_to_be_asked_again(tmp_path: Path, server: Served) -> None:
    passing = [f"script {' '.join(['500'] * 4)} ok {name}" for name in "abc"]
    world = World(tmp_path, ["one", "two", *passing])
    with pytest.raises(JudgeError, match=r"3 of 5 queries have no scores, .*: http 500 \(3\)"):
        world.score(endpoint(server))
    asked = len(server.bodies)
    _, flows = world.score(endpoint(server))
    assert flows == [Flow("test queries", 5, 5)]
    assert sorted(server.queries()[asked:]) == sorted(passing)


def test_what_was_bought_outlives_a_server_that_refuses_the_rest(tmp_path: Path, server: Served) -> None:
    last = max(query_id("one"), query_id("two"))
    unpaid = next(f"script 402 {i}" for i in range(99) if query_id(f"script 402 {i}") > last)
    world = World(tmp_path, ["one", "two", unpaid])
    alone = server.config().model_dump() | {"concurrency": 1}
    peer = PeerConfig.model_validate({"name": "server", "endpoint": alone})
    with pytest.raises(JudgeError, match="requires payment"):
        world.score(peer)
    bought = Artifact(world.store, "peer", "made").read_part("bought", 0, RUN)
    assert {query_id("one"), query_id("two")} == set(bought["query_id"].to_pylist())


def test_one_passing_failure_may_stay(tmp_path: Path, server: Served) -> None:
    world = World(tmp_path, ["one", "two", "three", "script 500"])
    _, flows = world.score(endpoint(server))
    assert flows == [Flow("test queries", 4, 3, 1)]


@pytest.mark.parametrize(
    ("peer", "said"),
    [
        ({"name": "first", "model": "y"}, "two peers are called first"),
        ({"name": "a", "run": "r", "untrained": True}, "exactly one"),
        ({"name": "a", "run": "r", "model": "m"}, "exactly one"),
        ({"name": "a", "run": "r", "trust_remote_code": True}, "trust_remote_code"),
        ({"name": "a"}, "exactly one"),
        ({"name": "a", "model": "m", "untrained": True}, "exactly one"),
        ({"name": "reranked", "model": "m"}, "is a system already"),
        ({"name": "start", "untrained": True}, "start is a system already, which rerank.start measures"),
        ({"name": "a", "endpoint": {"base_url": "http://h", "model": "m"}, "dev": True}, "leave dev out"),
        ({"name": "a+b", "model": "m"}, "name"),
        ({"name": "a", "untrained": True, "max_tokens": 32}, "training decides that"),
        ({"name": "a", "endpoint": {"base_url": "http://h", "model": "m"}, "max_tokens": 32}, "server decides that"),
    ],
)
def test_peers_that_cannot_be_meant(peer: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        validate({"rerank": {"peers": [{"name": "first", "model": "x"}, peer]}}, "test")


def test_only_what_changes_scores_changes_fingerprints(tmp_path: Path) -> None:
    folder = str(write_tiny_classifier(tmp_path / "model", ["relevance"]))
    other = str(write_tiny_classifier(tmp_path / "other", ["relevance"], seed=1))

    def of(train: dict[str, object] | None = None, *given: Mapping[str, object]) -> dict[str, str]:
        settings = Experiment.model_validate({"rerank": {"peers": list(given)}, "train": train or {}})
        return {name: one.fingerprint for name, one in resolve(settings, "content").items()}

    plain, server = of(), {"base_url": "http://h/v1", "model": "m"}
    assert result_settings(RerankConfig()) == {}
    for given in (
        {"name": "a", "model": folder},
        {"name": "a", "model": other},
        {"name": "a", "untrained": True},
        {"name": "a", "endpoint": server},
        {"name": "a", "endpoint": {**server, "shape": "tei"}},
    ):
        found = of(None, given)
        assert {name for name in plain if plain[name] != found[name]} == {"rerank", "evaluate", "report"}
    assert of(None, {"name": "a", "model": folder}) != of(None, {"name": "a", "model": other})
    patient = {**server, "retries": 9, "key_env": "KEY", "allow_external": True}
    assert of(None, {"name": "a", "endpoint": server}) == of(None, {"name": "a", "endpoint": patient})


def test_a_query_without_scores_is_no_zero_of_the_peer() -> None:
    queries, systems = [query_id(name) for name in "abc"], ["hybrid", "peer"]
    hits = {"doc_id": [doc_id("d")] * 5, "rank": [1] * 5, "score": [1.0] * 5}
    runs = RUN.table({"query_id": [*queries, *queries[:2]], "system": ["hybrid"] * 3 + ["peer"] * 2, **hits})
    asked = [query for query in sorted(queries) for _ in systems]
    metrics = METRIC.table({"query_id": asked, "system": systems * 3, "measure": ["nDCG@10"] * 6, "value": [0.5] * 6})
    kept = by_judges.without_failed(metrics, runs, ["peer"])
    assert kept.num_rows == 5
    assert set(kept.filter(pc.equal(kept["system"], "peer"))["query_id"].to_pylist()) == set(queries[:2])


def test_rejects_of_a_bucket_without_any(tmp_path: Path, server: Served) -> None:
    artifact, _ = World(tmp_path, ["one"]).score(endpoint(server))
    flow, why = held_out.refused(artifact, "mine", 0)
    assert (flow.rows_in, flow.rejected, why.num_rows, why.schema) == (1, 0, 0, REJECT.schema)


def test_the_plan_says_what_is_sent_where() -> None:
    endpoint = {"base_url": "https://api.example.org/v2", "model": "m", "documents_per_call": 40}
    peers = [{"name": "bare", "untrained": True}, {"name": "far", "endpoint": endpoint}]
    counts = {"documents": 1000, "train": 50, "dev": 5, "test": 30}

    def line(**rerank: object) -> StageCost:
        settings = Experiment.model_validate({"rerank": rerank})
        return costs(settings, counts)["rerank"]

    plain, more = line(), line(peers=peers)
    assert plain.work == "score 3,500 pairs"
    assert more.work == "score 3,500 pairs with 2 models; at most 90 calls to https://api.example.org/v2 for far"
    assert (plain.calls, more.calls) == (0, 90)
    assert plan.sent(Experiment()) == "nothing is sent outside this machine or cluster"
    sent = plan.sent(Experiment.model_validate({"rerank": {"peers": peers}}))
    assert sent == "texts of test queries and their top are sent to https://api.example.org/v2 (must not be external)"


def recorded(store: Store, name: str, corpus: str, train: str | None, complete: bool = True) -> None:
    """A run's record as far as another run reads it."""
    stages = {} if train is None else {"train": {"fingerprint": train}}
    store.publish_json(f"runs/{name}.json", {"corpus": corpus, "corpus_name": "theirs", "stages": stages})
    if train is not None and complete:
        Artifact(store, "train", train).complete([])


def test_another_runs_reranker_is_an_input_of_the_stage(tmp_path: Path, small_collection: Path) -> None:
    store, root = Store(str(tmp_path / "root")), {"root": str(tmp_path / "root")}
    corpus = {"reader": "beir", "path": str(small_collection)}
    plain = validate({"name": "own", "corpus": corpus, "execution": root}, "test")
    content = resolve(plain)["ingest"].content

    def resolved(run: str, **more: object) -> Mapping[str, Resolved]:
        rerank = {"peers": [{"name": "panel", "run": run, **more}]}
        return resolve(validate({"name": "own", "corpus": corpus, "execution": root, "rerank": rerank}, "t"))

    recorded(store, "panel", content, "one")
    recorded(store, "same", content, "one")
    recorded(store, "other", content, "two")
    found = resolved("panel")["rerank"]
    assert found.inputs["trained by panel"] == "one"
    assert resolved("same")["rerank"].fingerprint == found.fingerprint  # what was trained counts, not under which name
    fingerprints = {resolved("other")["rerank"].fingerprint, resolved("panel", max_tokens=32)["rerank"].fingerprint}
    assert len({found.fingerprint, resolve(plain)["rerank"].fingerprint, *fingerprints}) == 4
    assert resolved("panel")["train"].fingerprint == resolve(plain)["train"].fingerprint

    recorded(store, "elsewhere", "another", "one")
    recorded(store, "begun", content, None)
    recorded(store, "broken", content, "gone", complete=False)
    for run, said in (
        ("nobody", "no run of that name"),
        ("elsewhere", "run elsewhere is over another collection"),
        ("begun", "run begun has no model"),
        ("broken", "run broken has no model"),
        ("own", "run own is this run"),
    ):
        with pytest.raises(ConfigError, match=said) as caught:
            resolved(run)
        assert caught.value.remedy


def test_a_run_as_a_peer_is_read_back() -> None:
    one = PeerConfig.model_validate({"name": "p", "run": "r"})
    assert PeerConfig.model_validate(one.model_dump()) == one  # as a run's record keeps it
    assert PeerConfig.model_validate({"name": "p", "run": "r", "max_tokens": 64, "precision": "float32"}).run == "r"


def test_another_runs_reranker_scores_as_it_does_alone(tmp_path: Path) -> None:
    world = World(tmp_path / "store", ["one", "two", "three"])
    trained = Artifact(world.store, "train", "t")
    folder = write_tiny_classifier(tmp_path / "store" / trained.path / "model", ["relevance"])
    seal_folder(trained, "model")
    peer = PeerConfig(name="panel", run="other", precision="float32")
    artifact = artifact_of(peer, world.retrieve, world.ingest, DEPTH, trained)
    world.commit(artifact, peer, trained)
    alone = CrossEncoder.load(str(folder), threads=1)
    assert of_bucket(artifact, "panel", 0).equals(rerank(world.top, world.queries, world.texts, alone, "panel"))
    again = artifact_of(
        PeerConfig(name="q", run="r", precision="float32"), world.retrieve, world.ingest, DEPTH, trained
    )
    assert again == artifact
    assert artifact_of(peer, world.retrieve, world.ingest, DEPTH, Artifact(world.store, "train", "u")) != artifact
