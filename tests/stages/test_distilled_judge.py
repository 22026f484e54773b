"""A distilled judge of a panel: bound to the model that the run made when its stage runs, and asked as an encoder."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.judge import EncoderJudgeConfig, JudgeConfig, SimilarityJudgeConfig
from anmi_ray.core.identity import rng, text_hash
from anmi_ray.core.records import JUDGMENT, TEXT_OF
from anmi_ray.judging.kinds import distilled
from anmi_ray.runtime.tasks import Context
from anmi_ray.stages import judge
from anmi_ray.stages.judge import panel
from anmi_ray.store import Artifact, Store
from anmi_ray.store.folders import seal_folder
from tests.benchmarks.bench_judging import inputs, quiet
from tests.models.tiny import WORDS, write_tiny_classifier

QUERIES, BUCKETS, DOCUMENTS, SLOPE = 2, 2, 40, 2.5
FORMS: dict[str, dict[str, object]] = {
    "pairwise": {"form": "pairwise"},
    "pointwise": {"form": "pointwise", "slope": SLOPE},
    "bi-encoder": {"form": "pointwise", "slope": SLOPE},
}


def made(root: Path, form: str) -> Artifact:
    """A complete artifact of the stage distill, its model untrained."""
    artifact = Artifact(Store(str(root)), "distill", form)
    folder = root / artifact.path / "model"
    if form == "pairwise":
        write_tiny_classifier(folder, ["first", "second", "tie"])
        (folder / distilled.FILE).write_text(distilled.DistilledForm("ternary", max_tokens=32).to_json())
    else:
        write_tiny_classifier(folder, ["score"])
    seal_folder(artifact, "model")
    artifact.publish_json("summary.json", {"slope": SLOPE})
    artifact.complete([], settings={} if form == "bi-encoder" else {"form": form})
    return artifact


def readable(sources: dict[str, Artifact]) -> dict[str, Artifact]:
    """The sources with texts whose words a tiny model knows."""
    for bucket in range(BUCKETS):
        table = sources["retrieve"].read_part("texts", bucket, TEXT_OF)
        texts = [" ".join(rng("text", doc).choice(WORDS, 6)) for doc in table["doc_id"].to_pylist()]
        rows = {name: table[name] for name in table.column_names}
        rows |= {"text": texts, "text_hash": [text_hash("", text) for text in texts]}
        sources["retrieve"].publish_part("texts", bucket, TEXT_OF.table(rows), TEXT_OF)
    return sources


@pytest.mark.parametrize("form", FORMS)
def test_a_distilled_judge_is_an_encoder_judge_of_the_model_that_was_made(tmp_path: Path, form: str) -> None:
    artifact = made(tmp_path, form)
    judges = [{"kind": "similarity"}, {"kind": "distilled", "name": "small"}]
    config = JudgeConfig.model_validate({"judges": judges, "retry_passes": 3})
    bound = panel.bound(config, artifact)
    folder = str(tmp_path / artifact.path / "model")
    encoder = EncoderJudgeConfig.model_validate({"kind": "encoder", "name": "small", "model": folder, **FORMS[form]})
    assert bound.judges == (SimilarityJudgeConfig(kind="similarity"), encoder)
    assert bound.retry_passes == 3
    assert panel.bound(config, None) is config


@pytest.mark.ray
@pytest.mark.slow
def test_it_answers_as_that_encoder_and_buys_nothing_twice(ray_local: None, tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    sources, model = readable(inputs(store, QUERIES, BUCKETS, DOCUMENTS)), made(tmp_path, "pairwise")
    context = Context(
        store, ExecutionConfig(root=str(tmp_path), buckets=BUCKETS, chunk=280, askers=1), BUCKETS, 0, quiet
    )

    def run(name: str, given: dict[str, object], **more: Artifact) -> tuple[dict[str, int], pa.Table]:
        artifact = Artifact(store, "judge", name)
        config = JudgeConfig.model_validate({"judges": [given]})
        facts = judge.run(artifact, {**sources, **more}, config, context)
        judged = [artifact.read_part("judgments", bucket, JUDGMENT) for bucket in range(BUCKETS)]
        return facts["asked"]["small"], pa.concat_tables(judged)

    asked, judged = run("one", {"kind": "distilled", "name": "small"}, distill=model)
    folder = str(tmp_path / model.path / "model")
    again, same = run("other", {"kind": "encoder", "name": "small", "model": folder, "form": "pairwise"})
    assert asked == {"asked": QUERIES * 320, "answered": QUERIES * 320, "failed": 0}
    assert again == {"asked": 0, "answered": 0, "failed": 0}
    assert judged.equals(same)
    assert len(set(judged["p_a"].to_pylist())) > QUERIES * 40
