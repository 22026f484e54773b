"""Planted worlds for distilled judges, and one training of the product's loop in each: what distilled_claims.py reads.

A planted language: a document is 3 of 48 words, its relevance (sd 1) the sum of what they are worth, unknown to the
model; three judges perceive the gap with noise of sd .4 each and tie below .4. Under two of eight topics (a query is a
topic) pairs are hard: all judges see the gap with one more error of sd 2, which no word shows. So judges may agree
where a model can only say μ = ½, and the topic foretells it. The model: a BERT of 2 layers and width 48 with random
weights. No document is in two pairs; pairs are split by query. Letters: P pairs, R = 2P inputs, L labels.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from anmi_ray.config.distill import DistillConfig, Target
from anmi_ray.config.train import TrainExecution
from anmi_ray.identity import digest, rng
from anmi_ray.judging import orders
from anmi_ray.judging.fitting import Fitter
from anmi_ray.models.classifier import Coded
from anmi_ray.models.cross_encoder import quiet
from anmi_ray.models.pair_classifier import PairClassifier
from anmi_ray.scale import Floats
from anmi_ray.store import Store
from anmi_ray.training.loop import carry_out
from anmi_ray.training.pair_inputs import Logits, Together
from anmi_ray.training.preferences import HeldOut, PairSet, Preferences

VOCABULARY, LENGTH, TOPICS, HARD_TOPICS = 48, 3, 8, 2
JUDGES, WIDTH, OWN_SD, HARD_SD = 3, 0.4, 0.4, 2.0
TEXTS = ("{query} {first}", "{second}")  # the second segment is the second document
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
POINTS = 6  # checkpoints of a training, equally spaced


@dataclass(frozen=True)
class Size:
    """How much a training reads: queries to learn from, to calibrate on and to report, pairs of each, and steps."""

    train: int = 1000
    dev: int = 125
    test: int = 250
    per_query: int = 4
    steps: int = 300


@dataclass(frozen=True)
class Arm:
    """A training. share: of the queries to learn from."""

    target: Target
    random: bool = False
    share: float = 1.0
    decay: Literal["linear", "constant"] = "linear"


ARMS = {
    "binary": Arm("binary"),
    "ternary": Arm("ternary"),
    "two-head": Arm("two-head"),
    "two-head, longer": Arm("two-head"),
    "random": Arm("ternary", random=True),
    "random, few": Arm("ternary", random=True, share=0.125),
    "constant rate": Arm("ternary", decay="constant"),
}
LONGER = {"two-head, longer": 2}  # times the steps: two losses take longer to be learned


@dataclass(frozen=True)
class World:
    """Pairs (query, a, b) with the mean vote score_P[p] for b, the true gap, whether it is hard, and its query."""

    shown: list[tuple[str, str, str]]
    score_P: Floats
    gap_P: Floats
    hard_P: NDArray[np.bool_]
    query_P: NDArray[np.int64]


def draw(seed: int, size: Size) -> World:
    """The world of a seed: queries to learn from first, then those to calibrate on, then those of the report."""
    generator, queries = rng("distilled-claims", seed), size.train + size.dev + size.test
    worth = generator.permutation(np.linspace(-1.0, 1.0, VOCABULARY))
    worth /= worth.std() * np.sqrt(LENGTH)
    topic_Q, pairs = generator.integers(TOPICS, size=queries), queries * size.per_query
    query = np.repeat(np.arange(queries), size.per_query)
    words = generator.integers(VOCABULARY, size=(pairs, 2, LENGTH))
    latent = worth[words].sum(axis=2)
    gap, hard = latent[:, 1] - latent[:, 0], topic_Q[query] < HARD_TOPICS
    shared, own = generator.normal(size=pairs), generator.normal(size=(JUDGES, pairs))
    perceived = gap + np.where(hard, HARD_SD, 0.0) * shared + OWN_SD * own
    votes = np.where(np.abs(perceived) < WIDTH, 0.5, perceived > 0)
    shown = [
        (f"topic{topic_Q[q]}", " ".join(f"word{w}" for w in a), " ".join(f"word{w}" for w in b))
        for q, (a, b) in zip(query, words, strict=True)
    ]
    return World(shown, votes.mean(axis=0), gap, hard, query)


def shuffled(world: World, seed: int) -> World:
    """The same pairs with each other's scores."""
    return replace(world, score_P=rng("shuffled", seed).permutation(world.score_P))


def write_bert(folder: Path, seed: int) -> Path:
    """Write a BERT with random weights, and a tokenizer that knows the words of worlds; returns `folder`."""
    words = [*SPECIAL, *(f"topic{i}" for i in range(TOPICS)), *(f"word{i}" for i in range(VOCABULARY))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=32, model_input_names=inputs, **names)
    fast.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=32,
        initializer_range=0.1,  # large enough for words, places and segments to differ from the start
    )
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        BertModel(config).save_pretrained(folder)
    return folder


def train(arm: Arm, seed: int, size: Size, world: World) -> dict[str, Any]:
    """Logits of the held-out pairs at every checkpoint, and the step that is best on the pairs to calibrate on."""
    world = shuffled(world, seed) if arm.random else world
    first, dev = size.train * size.per_query, size.dev * size.per_query
    learned = round(arm.share * size.train) * size.per_query
    with tempfile.TemporaryDirectory() as folder:
        config = DistillConfig(
            model=str(write_bert(Path(folder), seed)),
            target=arm.target,
            text=TEXTS[0],
            text_pair=TEXTS[1],
            max_tokens=32,
            pairs_per_step=min(64, learned),
            max_steps=size.steps,
            learning_rate=2e-3,
            head_learning_rate=2e-3,
            decay=arm.decay,
            precision="float32",
            freeze_embeddings=False,
            equal_segments=False,
            dev_points=tuple((k + 1) / POINTS for k in range(POINTS)),
            seed=seed,
        )
        model = PairClassifier.start(config, arm.target)
    coded = Fitter(model, *TEXTS).inputs([one for q, a, b in world.shown for one in ((q, a, b), (q, b, a))])
    held = _pairs(model, coded, world, seed, slice(first, None))
    logits: dict[str, list[list[float]]] = {}

    def measure(step: int, logits_RL: Logits) -> float:
        logits[str(step)] = np.round(logits_RL.astype(np.float64), 4).tolist()
        return -orders.fit(logits_RL[: 2 * dev], held.score_P[:dev], arm.target, "temperature").loss

    data, execution = _pairs(model, coded, world, seed, slice(0, learned)), TrainExecution()
    trained = carry_out(partial(Preferences, model, data, HeldOut(held, measure), config, execution), config, execution)
    return {"best": trained.best_step, "logits": logits}


def _pairs(model: PairClassifier, coded: Coded, world: World, seed: int, part: slice) -> PairSet:
    number = range(len(world.score_P))[part]
    ids = b"".join(digest("distilled-claims", seed, p) for p in number)
    rows = slice(2 * number.start, 2 * number.stop)
    inputs = model.inputs({name: values[rows] for name, values in coded.items()})
    return PairSet(np.frombuffer(ids, np.uint8).reshape(-1, 16).copy(), world.score_P[part], Together(inputs))


def trainings(
    arms: Mapping[str, Arm], seeds: int, size: Size, out: Store, say: Callable[[str], None]
) -> dict[str, list[dict[str, Any]]]:
    """What every training found, by arm and seed, as JSON under `out`; what is there for the same settings stays."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
    for seed in range(seeds):
        world = draw(seed, size)
        for name, arm in arms.items():
            own = replace(size, steps=size.steps * LONGER.get(name, 1))
            settings = {"arm": asdict(arm), "seed": seed, "size": asdict(own)}
            path = f"{name.replace(', ', '-').replace(' ', '-')}-{seed}.json"
            record = out.read_json(path)
            if not record or record["settings"] != settings:
                record = {"settings": settings, "found": train(arm, seed, own, world)}
                out.publish_json(path, record)
                say(f"trained {name}, seed {seed}")
            found[name].append(record["found"])
    return found
