"""What a distilled judge exports, in vLLM's classification runner: probabilities are those of its own model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from anmi_ray.config.distill import LABELS, DistillConfig
from anmi_ray.models import loading
from anmi_ray.models.classifier import Classifier, PairClassifier, sharpen
from tests.engines import in_vllm, needs_vllm
from tests.models.tiny import write_tiny_classifier, write_tiny_llm

pytestmark = [needs_vllm, pytest.mark.long, pytest.mark.timeout(300)]

# A BERT tells two texts apart by segments, which vLLM takes compressed: all zeros first, all ones after.
CLASSIFY = """
import json, sys

def main(folder, inputs, found):
    from vllm import LLM, PoolingParams, TokensPrompt

    engine = LLM(folder, runner="pooling", dtype="float32", enforce_eager=True, max_model_len=64)
    asked = json.load(open(inputs))
    prompts = [TokensPrompt(prompt_token_ids=one["input_ids"]) for one in asked]
    second = [one["token_type_ids"].index(1) if 1 in one.get("token_type_ids", ()) else None for one in asked]
    params = [
        PoolingParams(extra_kwargs=None if at is None else {"compressed_token_type_ids": at}) for at in second
    ]
    made = engine.classify(prompts, pooling_params=params, use_tqdm=False)
    json.dump([one.outputs.probs for one in made], open(found, "w"))

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_vllm_classifies_as_the_judge_does(kind: str, tmp_path: Path) -> None:
    base = tmp_path / "base"
    if kind == "encoder":
        write_tiny_classifier(base, ["score"], num_attention_heads=1)  # its attention on the CPU wants heads of 32
    else:
        write_tiny_llm(base)
    config = DistillConfig.model_validate({"model": str(base), "max_tokens": 64})
    model = PairClassifier.start(config, "ternary")
    sharpen(model.network, 20.0, range(3))
    folder = model.export(tmp_path / "model")
    first, second = ["word1 word2", "word3", "word4 word5 word6"], ["word7 word8", "word9 word1", "word2"]
    judge = Classifier(loading.resolve(str(folder)))
    shown = (first, second) if kind == "encoder" else ([f"{a}\n{b}" for a, b in zip(first, second, strict=True)], None)
    coded = judge.encode(*shown)
    asked = [{name: list(map(int, coded[name][row])) for name in coded} for row in range(3)]
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    in_vllm(CLASSIFY, tmp_path, str(folder), "asked.json", "found.json")
    logits = judge.logits(*shown)
    share = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert np.ptp(share, axis=0).max() > 0.05
    assert share.shape == (3, len(LABELS["ternary"]))
    np.testing.assert_allclose(json.loads((tmp_path / "found.json").read_text()), share, atol=1e-4)
