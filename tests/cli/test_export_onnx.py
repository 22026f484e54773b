"""anmi export --onnx: the files score alike in ONNX Runtime as the card says, and their cost in nDCG@10 is measured."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anmi_ray.api.export import write_onnx
from anmi_ray.core import environment, identity
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.records import QREL, QUERY, RUN, TEXT_OF
from anmi_ray.models import onnx_files
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.card import Card, text
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.late_interaction import LateInteraction
from anmi_ray.stages.rerank import ranking
from anmi_ray.store import Artifact, Flow, Store
from tests.cli.test_export import PAIRS, write_run
from tests.commands import printed, refused
from tests.models.test_bi_encoder import published
from tests.models.tiny import write_tiny_bert, write_tiny_decoder, write_tiny_encoder

QUERIES, DOCUMENTS = [query for query, _ in PAIRS], [document for _, document in PAIRS]
KINDS: dict[str, Any] = {
    "cls": CrossEncoder,
    "mean": CrossEncoder,
    "bi-encoder": BiEncoder,
    "late-interaction": LateInteraction,
}


@pytest.fixture(autouse=True)
def packages() -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")


def scores_by_the_card(folder: Path, numbers: onnx_files.Numbers) -> np.ndarray:
    """What the card's code for ONNX Runtime gives for PAIRS."""
    card = (folder / "README.md").read_text(encoding="utf-8")
    code = card.split("### ONNX")[1].split("```python\n")[1].split("```")[0].replace("PATH_OF_THIS_FOLDER", str(folder))
    code = code.replace("onnx/model.onnx", onnx_files.FILES[numbers]).replace('["a query"]', repr(QUERIES))
    code = code.replace('["Title\\nText of a document"]', repr(DOCUMENTS))
    names: dict[str, Any] = {}
    exec(code, names)
    scores = names["scores"]
    return scores.diagonal() if scores.ndim == 2 else scores


def weights(file: Path) -> int:
    """Bytes of a file's constants."""
    onnx = importlib.import_module("onnx")
    return sum(len(one.raw_data) for one in onnx.load(str(file)).graph.initializer)


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_score_as_the_model_in_plain_onnxruntime(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "root"
    train = write_run(root, pooling=kind, until="train")
    printed("export", "r1", "--root", root, "--to", tmp_path / "out", "--int8")
    ours = KINDS[kind].load(str(root / train.path / "model")).score(QUERIES, DOCUMENTS)
    float32, int8 = (scores_by_the_card(tmp_path / "out", numbers) for numbers in ("float32", "int8"))
    np.testing.assert_allclose(float32, ours, atol=onnx_files.TOLERANCE)
    np.testing.assert_allclose(int8, ours, atol=0.05)
    assert not np.array_equal(int8, float32)
    sizes = [weights(tmp_path / "out" / file) for file in onnx_files.FILES.values()]
    assert sizes[1] < sizes[0]
    assert "| onnx/model_int8.onnx | 0 |  | not measured |" in (tmp_path / "out" / "README.md").read_text("utf-8")


def assert_written(model: Any, folder: Path) -> None:
    """The float32 file of an exported model, read as its card says, scores alike."""
    model.export(folder)
    onnx_files.write(model, folder, "float32")
    told = {"name": "m", "base_model": "base", "judges": "none", "simulated": True, "collection": "c"}
    row = {"file": "onnx/model.onnx", "bytes": 1}
    card: Any = Card(**told, data=(), method=(), citations=(), onnx=[row])  # type: ignore[arg-type]
    (folder / "README.md").write_text(text(card, folder), encoding="utf-8")
    found = scores_by_the_card(folder, "float32")
    np.testing.assert_allclose(found, model.score(QUERIES, DOCUMENTS), atol=onnx_files.TOLERANCE)


def test_a_bi_encoder_that_pools_the_last_token_of_texts_of_any_length(tmp_path: Path) -> None:
    base = write_tiny_decoder(tmp_path / "base", "qwen3", chatml=True)
    assert_written(BiEncoder.load(str(published(base, tmp_path / "start", "lasttoken"))), tmp_path / "model")


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_an_input_that_the_network_does_not_read(tmp_path: Path) -> None:
    base = write_tiny_encoder(tmp_path / "base", "deberta-v2")  # without segments, which its tokenizer gives
    assert_written(CrossEncoder.load(str(base), seed=1), tmp_path / "model")


def test_a_network_that_cannot_be_traced_is_refused(tmp_path: Path) -> None:
    model = BiEncoder.load(str(write_tiny_bert(tmp_path / "base")))
    encoder: Any = model.network.encoder
    encoder.get_input_embeddings().register_forward_hook(
        lambda *of: of[2] + torch.linalg.eigvalsh(of[2].mT @ of[2]).sum()
    )
    with pytest.raises(ConfigError, match="no ONNX graph can be made of it"):
        onnx_files.write(model, tmp_path, "float32")


def test_a_token_with_large_values_moves_no_other_texts_scores_in_8_bits(tmp_path: Path) -> None:
    model = LateInteraction.load(str(write_tiny_bert(tmp_path / "base")))
    encoder: Any = model.network.encoder
    layer = encoder.encoder.layer[0]
    seen: list[torch.Tensor] = []
    handle = layer.intermediate.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0]))
    model.score(["word1"], ["word9"])
    handle.remove()
    with torch.no_grad():  # one unit, which the document's word alone turns on, to some hundreds
        large = seen[-1][1]
        layer.intermediate.dense.weight[0] = 300 * large / large.norm()
        layer.intermediate.dense.bias[0] = -200 * large.norm()
        layer.output.dense.weight[:, 0] *= 1e-4
    onnx_files.write(model, tmp_path, "float32")
    int8 = onnx_files.reading(model, onnx_files.write(model, tmp_path, "int8"))
    alone = int8.score(["word1 word2"] * 2, ["word4 word5", "word6 word3"])
    beside = int8.score(["word1 word2"] * 3, ["word4 word5", "word6 word3", "word9"])[:2]
    np.testing.assert_allclose(beside, alone, atol=0.005)


def test_a_decoder_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    write_run(tmp_path / "root", pooling="yes-no", until="train")
    assert "a decoder" in refused("export", "r1", "--root", tmp_path / "root", "--to", tmp_path / "out", "--onnx")
    assert not (tmp_path / "out").exists()


def test_without_the_packages_one_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "onnx" else find(name, *more))
    write_run(tmp_path / "root", until="train")
    said = refused("export", "r1", "--root", tmp_path / "root", "--to", tmp_path / "out", "--onnx")
    assert environment.install("onnx") in said


def held_out(root: Path, split: str, scores: np.ndarray) -> dict[str, Artifact]:
    """Two queries with three documents each, of which the run's model has said `scores` float64[6]."""
    store = Store(str(root))
    artifacts = {stage: Artifact(store, stage, f"f-{stage}") for stage in ("ingest", "retrieve", "rerank")}
    texts = [f"word{i} word{i + 7}" for i in range(3)]
    ids = sorted(identity.doc_id(text) for text in texts)
    hashes = [identity.text_hash("", text) for text in texts]
    queries = sorted(identity.query_id(name) for name in ("word1", "word2"))
    named = {"query_id": queries, "external_id": ["word1", "word2"], "text": ["word1", "word2"]}
    asked = QUERY.table(
        {**named, "text_hash": [identity.text_hash(name) for name in named["text"]], "split": [split] * 2}
    )
    pairs = {"query_id": [q for q in queries for _ in ids], "doc_id": ids * 2, "rank": [1, 2, 3] * 2}
    hybrid = RUN.table({**pairs, "system": ["hybrid"] * 6, "score": [3.0, 2.0, 1.0] * 2})
    qrels = QREL.table({"query_id": queries, "doc_id": [ids[2], ids[0]], "grade": [1, 1]})
    text = TEXT_OF.table({"doc_id": ids, "external_id": texts, "text_hash": hashes, "title": [""] * 3, "text": texts})
    parts = {
        "ingest": {"queries": (QUERY, asked), "qrels": (QREL, qrels)},
        "retrieve": {"texts": (TEXT_OF, text), "runs": (RUN, hybrid)},
        "rerank": {"runs": (RUN, ranking.ranked(hybrid, scores))},
    }
    for stage, artifact in artifacts.items():
        artifact.commit_bucket(0, parts[stage], [Flow("rows", 6, 6)], None)
        artifact.complete(flows=[Flow("rows", 6, 6)], buckets=1, depth=3)
    return artifacts


def test_what_a_file_costs_is_its_ndcg_against_the_run_s(tmp_path: Path) -> None:
    model = CrossEncoder.load(str(write_tiny_bert(tmp_path / "base")), pooling="mean", seed=1)
    model.export(tmp_path / "model")
    artifacts = held_out(tmp_path / "any", "dev", np.zeros(6))
    hybrid = artifacts["retrieve"].read_part("runs", 0, RUN)
    queries = artifacts["ingest"].read_part("queries", 0, QUERY)
    own = ranking.rerank(hybrid, queries, artifacts["retrieve"].read_part("texts", 0, TEXT_OF), model)
    score = {(row["query_id"], row["doc_id"]): row["score"] for row in own.to_pylist()}
    scores = np.array([score[row["query_id"], row["doc_id"]] for row in hybrid.to_pylist()])
    (same,) = write_onnx(tmp_path / "model", ["float32"], held_out(tmp_path / "same", "dev", scores))
    assert (same["queries"], same["split"], same["difference"]) == (2, "dev", 0.0)
    (opposite,) = write_onnx(tmp_path / "model", ["float32"], held_out(tmp_path / "opposite", "dev", -scores))
    assert opposite["mean"] == same["mean"]
    assert opposite["difference"] != 0.0
