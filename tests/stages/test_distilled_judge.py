"""A distilled judge of a panel: bound to the model that the run made."""

from __future__ import annotations

from pathlib import Path

import pytest

from anmi_ray.config.judge import EncoderJudgeConfig, JudgeConfig, SimilarityJudgeConfig
from anmi_ray.judging.kinds import distilled
from anmi_ray.stages.judge import panel
from anmi_ray.store import Artifact, Store
from anmi_ray.store.folders import seal_folder
from tests.models.tiny import write_tiny_classifier

SLOPE = 2.5
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
