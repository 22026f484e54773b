"""anmi export: the copy scores alike everywhere, its card says what the run knows, and what is damaged is refused."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import ModelCard
from sentence_transformers import CrossEncoder as PublishedCrossEncoder
from transformers import AutoTokenizer

from anmi_ray.api.export import export, public_model
from anmi_ray.config.experiment import Experiment
from anmi_ray.core.errors import ConfigError, DamagedError, DataError
from anmi_ray.evaluation.relevance import FILE, Relevance, find
from anmi_ray.models import loading
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.card import Card, text
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.late_interaction import LateInteraction
from anmi_ray.store import Artifact, Flow, Store
from anmi_ray.store.folders import seal_folder
from tests.evaluation.scored_pairs import relevance
from tests.models.test_bi_encoder import published
from tests.models.tiny import write_tiny_bert, write_tiny_decoder

NUMBERS = {"difference": None, "difference_low": None, "difference_high": None, "p": None, "p_holm": None}
MEASURED = {"difference": 0.021, "difference_low": 0.003, "difference_high": 0.04, "p": 0.0123, "p_holm": 0.0246}
PAIRS = [("word1 word2", "word3 word4"), ("word1", "word9 " * 90), ("word5", "Title\nword6 word7")]
EXAMPLES = {
    "queries": '["a query"]',
    "documents": '["Title\\nText of a document"]',
    "pairs": '[("a query", "Title\\nText of a document")]',
}
VECTORS = {"bi-encoder": BiEncoder, "late-interaction": LateInteraction}
STAGES = ("ingest", "judge", "mine", "train", "evaluate")


def row(system: str, measure: str, mean: float, **more: Any) -> dict[str, Any]:
    return {
        "system": system,
        "measure": measure,
        "queries": 20,
        "mean": mean,
        "low": mean - 0.05,
        "high": mean + 0.05,
    } | more


def write_run(
    root: Path, name: str = "r1", pooling: Any = "cls", until: str = "evaluate", worth: Relevance | None = None
) -> Artifact:
    """A run's record and artifacts as the stages write them; the model is a real one. Returns the train artifact."""
    store, environment = Store(str(root)), {"versions": {"torch": "2.13"}}
    config = Experiment().model_dump(mode="json", exclude={"execution"})
    done = STAGES[: STAGES.index(until) + 1]
    artifacts = {stage: Artifact(store, stage, f"f-{stage}") for stage in done}
    facts: dict[str, dict[str, Any]] = {
        "ingest": {"flows": [Flow("documents", 10, 9, 1)], "splits": {"train": 5, "test": 20}},
        "judge": {"flows": [Flow("questions", 40, 38, 2)]},
        "mine": {"flows": [Flow("anchors", 5, 5)]},
        "train": {
            "flows": [Flow("examples", 5, 5)],
            "best_step": 3,
            "steps": 6,
            "dev": 0.5,
            "settings": {"epochs": 2.0},
        },
        "evaluate": {"flows": [Flow("test queries", 20, 20)]},
    }
    summary = {"examples": 5, "queries": 4, "negatives_per_example": 3.0, "false_negative_rate": {"mean": 0.01}}
    for stage, artifact in artifacts.items():
        if stage == "train":
            decoder, kept = pooling in ("last", "yes-no"), root / artifact.path / "model"
            base = write_tiny_decoder(root / "base", "llama") if decoder else write_tiny_bert(root / "base")
            prompt = "{query} {document} so:" if decoder else None
            if pooling in VECTORS:
                start = published(base, root / "start", prompts={"query": "word7 ", "document": "word2 word3 "})
                VECTORS[pooling].load(str(start)).export(kept)
            else:
                CrossEncoder.load(str(base), pooling=pooling, seed=1, prompt=prompt).export(kept)
            seal_folder(artifact, "model")
        if stage == "mine":
            artifact.publish_json("summary.json", summary)
        if stage == "evaluate":
            rows = [row("hybrid", "nDCG@10", 0.55, **NUMBERS), row("reranked", "nDCG@10", 0.571, **MEASURED)]
            artifact.publish_json("comparisons.json", rows)
            artifact.publish_json(FILE, None if worth is None else asdict(worth))
        artifact.complete(**facts[stage])
    stages = {stage: {"fingerprint": artifact.fingerprint} for stage, artifact in artifacts.items()}
    record = {"name": name, "corpus_name": "/private/place/docs", "config": config, "environment": environment}
    store.publish_json(f"runs/{name}.json", record | {"stages": stages})
    return artifacts.get("train", artifacts["ingest"])


def scores_of(card: str, block: int, folder: Path, **given: object) -> Any:
    """What a block of code of a card gives for a model's folder, with these values in the place of its examples."""
    code = card.split("```python\n")[block].split("```")[0].replace("PATH_OF_THIS_FOLDER", str(folder))
    for example, value in given.items():
        code = code.replace(EXAMPLES[example], repr(value))
    names: dict[str, Any] = {}
    exec(code, names)
    return names["scores"]


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_exported_folder_scores_alike(tmp_path: Path, pooling: str) -> None:
    train = write_run(tmp_path / "root", pooling=pooling)
    to = export("r1", str(tmp_path / "root"), tmp_path / "out")
    queries, documents = [query for query, _ in PAIRS], [document for _, document in PAIRS]
    ours = CrossEncoder.load(str(tmp_path / "root" / train.path / "model")).score(queries, documents)
    published = PublishedCrossEncoder(str(to), device="cpu").predict(PAIRS, show_progress_bar=False)
    np.testing.assert_allclose(ours, published, atol=1e-5)
    assert len(set(ours.tolist())) == 3
    card = (to / "README.md").read_text(encoding="utf-8")
    assert (pooling == "cls") == ("from vllm" in card)


@pytest.mark.parametrize("kind", VECTORS)
def test_the_card_of_a_model_of_vectors_and_its_code(tmp_path: Path, kind: str) -> None:
    train = write_run(tmp_path / "root", pooling=kind)
    to = export("r1", str(tmp_path / "root"), tmp_path / "out")
    queries, documents = [query for query, _ in PAIRS], [document for _, document in PAIRS]
    model = VECTORS[kind].load(str(tmp_path / "root" / train.path / "model"))
    card: Any = ModelCard.load(to / "README.md")
    assert (card.data.pipeline_tag, card.data.tags[0]) == ("sentence-similarity", kind)
    assert "raw logit" not in card.text
    scores = scores_of(card.text, 1, to, queries=queries, documents=documents)
    np.testing.assert_allclose(model.score(queries, documents), scores.diagonal().numpy(), atol=1e-5)
    if kind == "late-interaction":
        pooled = scores_of(card.text, 2, to, queries=queries, documents=documents)
        cosines = BiEncoder.score_tokens(model, model.tokens(queries, documents))
        np.testing.assert_allclose(cosines, pooled.diagonal().numpy(), atol=1e-5)


def test_the_card_of_a_bi_encoder_made_of_a_decoder_speaks_of_no_prompt_with_both_texts(tmp_path: Path) -> None:
    base = write_tiny_decoder(tmp_path / "base", "qwen3", chatml=True)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = "{% for one in messages %}{{ one['content'] }}{% endfor %}"
    tokenizer.save_pretrained(base)
    folder = BiEncoder.load(str(base)).export(tmp_path / "model")
    assert (folder / "chat_template.jinja").is_file()
    card: Any = Card(
        name="m", base_model="b", judges="j", simulated=True, collection="c", data=(), method=(), citations=()
    )
    made = text(card, folder)
    assert "SentenceTransformer(" in made
    assert "decoder" not in made


@pytest.mark.parametrize("pooling", ["last", "yes-no"])
def test_the_card_of_a_decoder_says_how_it_is_read(tmp_path: Path, pooling: str) -> None:
    train = write_run(tmp_path / "root", pooling=pooling)
    to = export("r1", str(tmp_path / "root"), tmp_path / "out")
    ours = CrossEncoder.load(str(tmp_path / "root" / train.path / "model")).score(*map(list, zip(*PAIRS, strict=True)))
    card = (to / "README.md").read_text(encoding="utf-8")
    np.testing.assert_allclose(ours, np.asarray(scores_of(card, 1, to, pairs=PAIRS)), atol=2e-4)
    assert ("from_2_way_softmax" in card) == ("'classifier_from_token': ['no', 'yes']" in card) == (pooling == "yes-no")


def test_the_card_says_what_the_run_knows(tmp_path: Path) -> None:
    write_run(tmp_path / "root")
    to = export("r1", str(tmp_path / "root"), tmp_path / "out", license="apache-2.0", title="my-reranker")
    card = ModelCard.load(to / "README.md")
    data: Any = card.data
    assert (data.license, data.pipeline_tag, data.library_name) == (
        "apache-2.0",
        "text-ranking",
        "sentence-transformers",
    )
    assert data.base_model == "sentence-transformers/all-MiniLM-L6-v2"
    (result,) = data.eval_results
    assert (result.metric_name, result.metric_value, result.dataset_split) == ("nDCG@10", 0.571, "test")
    assert result.metric_args["low"] == pytest.approx(0.521)
    for said in (
        "simulated panel",
        "| reranked | nDCG@10 | 0.571 [0.521, 0.621] | +0.021 [+0.003, +0.040] | 0.0123 (0.0246) |",
    ):
        assert said in card.text
    for said in (
        "| test queries | 20 |",
        "38 of 40",
        "5 of 4 queries, 3.0 negatives each",
        "step 3 of 6",
        '"epochs": 2.0',
    ):
        assert said in card.text
    assert "/private/place" not in card.content


def test_a_folder_that_a_model_started_from_is_no_repository_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`models/start` would be somebody else's; the run's record tells it where the folder is gone."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "root", until="train")
    record = json.loads((tmp_path / "root" / "runs" / "r1.json").read_text())
    record["config"]["train"]["model"] = "models/start"
    store, base = Store(str(tmp_path / "root")), write_tiny_bert(tmp_path / "models" / "start")
    revision = loading.resolve("models/start").revision
    for at, inputs in enumerate(({}, {"model": revision})):
        record["stages"]["train"]["inputs"] = inputs
        store.publish_json(f"runs/r{at + 2}.json", record | {"name": f"r{at + 2}"})
        card = ModelCard.load(export(f"r{at + 2}", str(tmp_path / "root"), tmp_path / f"out{at}") / "README.md")
        data: Any = card.data
        assert data.base_model is None
        assert "models/start" not in card.content
        if base.exists():
            base.rename(tmp_path / "moved")
    assert public_model("models/start", "4" * 40) == "models/start"  # a hub's commit


def test_the_folder_says_what_a_score_is_worth(tmp_path: Path) -> None:
    found = relevance()
    write_run(tmp_path / "root", worth=found)
    to = export("r1", str(tmp_path / "root"), tmp_path / "out")
    assert find(to) == found
    card = ModelCard.load(to / "README.md").text
    assert all(line in card for line in found.said())
    assert "no probabilities but by `relevance.json`" in card


def test_without_an_evaluation_or_a_license_the_card_claims_none(tmp_path: Path) -> None:
    write_run(tmp_path / "root", until="train")
    card = ModelCard.load(export("r1", str(tmp_path / "root"), tmp_path / "out") / "README.md")
    data: Any = card.data
    assert data.license is None
    assert data.eval_results is None
    assert "Not evaluated." in card.text
    assert "those of different queries do not compare" in card.text
    assert find(tmp_path / "out") is None


def test_what_cannot_be_exported_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    root = tmp_path / "root"
    train = write_run(root)
    write_run(tmp_path / "half", until="mine")
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("kept")
    with pytest.raises(ConfigError, match="is not empty"):
        export("r1", str(root), full)
    assert [path.name for path in full.iterdir()] == ["mine.txt"]
    with pytest.raises(ConfigError, match="no run of that name; there are r1"):
        export("r2", str(root), tmp_path / "out")
    with pytest.raises(DataError, match="has no model"):
        export("r1", str(tmp_path / "half"), tmp_path / "out")
    weights = root / train.path / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(DamagedError, match=r"model\.safetensors"):
        export("r1", str(root), tmp_path / "out")
    weights.unlink()
    with pytest.raises(DamagedError):
        export("r1", str(root), tmp_path / "out")
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]


def test_a_card_names_a_collection_without_the_options_of_its_address(tmp_path: Path) -> None:
    write_run(tmp_path / "root")
    store = Store(str(tmp_path / "root"))
    record = store.read_json("runs/r1.json")
    store.publish_json("runs/r1.json", record | {"corpus_name": "s3://me:word@bucket/docs?secret_key=word"})
    card = (export("r1", str(tmp_path / "root"), tmp_path / "out") / "README.md").read_text(encoding="utf-8")
    assert "docs" in card
    assert "word@" not in card
    assert "secret_key" not in card
