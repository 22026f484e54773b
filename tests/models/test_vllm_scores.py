"""The code that a model's card gives for vLLM, run: its scores are those of the model."""

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

from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.card import Card, text
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.reranker import Reranker
from tests.engines import in_vllm, needs_vllm
from tests.models.tiny import write_tiny_bert, write_tiny_decoder

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
