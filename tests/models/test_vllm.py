"""Models in vLLM: what a model card's code gives, and a distilled judge in the classification runner."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from anmi_ray.config.distill import LABELS, DistillConfig
from anmi_ray.models import loading
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.card import Card, text
from anmi_ray.models.classifier import Classifier, PairClassifier, sharpen
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.reranker import Reranker
from tests.engines import in_vllm, needs_vllm
from tests.models.tiny import write_tiny_bert, write_tiny_classifier, write_tiny_decoder, write_tiny_llm

pytestmark = [needs_vllm, pytest.mark.long, pytest.mark.timeout(300)]
QUERY = "open word1 word2"
DOCUMENTS = ["word3", "word4 word5 word6", "word1 word9 word2"]
LONG = " ".join(f"word{i % 20}" for i in range(100))
RUN = """
import json, sys

def main(to):
{code}
    json.dump([float(score) for score in np.ravel(scores)], open(to, "w"))

if __name__ == "__main__":
    import numpy as np

    main(*sys.argv[1:])
"""


def by_the_card(folder: Path, documents: list[str], scratch: Path) -> np.ndarray:
    """What the card's code gives for the query and the documents."""
    told = {"name": "m", "base_model": "base", "judges": "none", "simulated": True, "collection": "c"}
    card = text(Card(**told, data=(), method=(), citations=()), folder)  # type: ignore[arg-type]
    blocks = [block.split("```")[0] for block in card.split("```python\n")[1:]]
    [code] = (block for block in blocks if "from vllm" in block)
    for example, value in {
        "PATH_OF_THIS_FOLDER": str(folder),
        'runner="pooling"': 'runner="pooling", dtype="float32", enforce_eager=True',
        '"a query"': repr(QUERY),
        '["Title\\nText of a document"]': repr(documents),
    }.items():
        assert example in code
        code = code.replace(example, value)
    in_vllm(RUN.format(code=textwrap.indent(code, "    ")), scratch, "found.json")
    return np.array(json.loads((scratch / "found.json").read_text()))


def assert_alike(model: Reranker, scratch: Path, *more: str) -> None:
    """The exported model scores in vLLM as here, and tells the documents apart; `more` stand beside DOCUMENTS."""
    documents = [*DOCUMENTS, *more]
    scores = model.score([QUERY] * len(documents), documents)
    assert np.ptp(scores) > 2e-3
    np.testing.assert_allclose(by_the_card(model.export(scratch / "model"), documents, scratch), scores, atol=1e-4)


def test_a_cross_encoder(tmp_path: Path) -> None:
    base = write_tiny_bert(tmp_path / "base", heads=1)  # vLLM's attention on the CPU wants heads of 32
    assert_alike(CrossEncoder.load(str(base), max_tokens=32, seed=0), tmp_path, LONG)


@pytest.mark.parametrize(("pooling", "family"), [("last", "llama"), ("yes-no", "llama"), ("yes-no", "qwen3")])
def test_a_decoder(pooling: Any, family: str, tmp_path: Path) -> None:
    base = write_tiny_decoder(tmp_path / "base", family, head=32)
    prompt = "{query} {document} so:"
    assert_alike(CrossEncoder.load(str(base), max_tokens=200, pooling=pooling, seed=1, prompt=prompt), tmp_path)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_bi_encoder_with_prompts(pooling: Any, tmp_path: Path) -> None:
    base = write_tiny_bert(tmp_path / "base", heads=1)
    modules = [Transformer(str(base)), Pooling(32, pooling), Normalize()]
    prompts = {"query": "word7 ", "document": "word2 word3 "}
    SentenceTransformer(modules=modules, prompts=prompts).save(str(tmp_path / "start"))
    assert_alike(BiEncoder.load(str(tmp_path / "start"), max_tokens=32), tmp_path, LONG)


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
