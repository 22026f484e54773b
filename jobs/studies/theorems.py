"""What do the report's Theorems 1, 2, 3, 6, 9, 13 and Proposition 1 come to in numbers?

    python -m jobs.studies.theorems --data scifact=FOLDER [--seeds 5]

Each sentence is taken as it is written, with what would refute it said beforehand, and tried with the project's own
code: gradients are autograd's of `training/losses.py`, graphs those of the compare stage, ratings those of the rate
stage's solver (`theorem_ratings`). A sentence holds where all of the 95 % interval lies where the sentence wants it,
fails where all of it lies outside, and cannot be told otherwise. O(...) names no constant, so what is tested of it is
growth.

Real similarities are cosines of the shipped all-MiniLM-L6-v2, cut at 128 tokens, between labelled queries of a
collection and their relevant documents with others drawn at random, a thousand together: a query's positive is its
first relevant document, its negatives are those not labelled relevant, by falling cosine. τ is .07 where not said, a
bi-encoder's default. Theorem 13 is tried with a small model: queries are unit vectors of d dimensions, a relevant
document is a rotation of its query with as much noise, others are random, a share ρ of the negatives is relevant; one
d x d matrix before the cosine is trained on n queries by full-batch Adam, with the project's InfoNCE.

Letters: Q queries, B lists, K documents of a list with the positive first, N negatives, S seeds.

To read: a number in brackets is the 95 % interval, by Student's t, over queries, lists or seeds. An exponent b says
that a quantity goes as the b-th power of another; it is the slope of logarithms. Verdicts judge sentences as written
here, with the sizes here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial

import numpy as np
import torch
from torch.nn.functional import normalize

from anmi_ray.core.errors import ConfigError
from anmi_ray.core.identity import digest, rng
from anmi_ray.corpus.beir import BeirFiles
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.loading import PACKAGED
from anmi_ray.training.losses import weighted_infonce
from jobs.studies import harness
from jobs.studies.harness import Results, Table
from jobs.studies.theorem_losses import (
    TAU,
    Similarities,
    decomposition,
    false_negatives,
    hard_negatives,
    variation,
)
from jobs.studies.theorem_ratings import (
    GROWN,
    Claim,
    Findings,
    Level,
    algorithm1,
    errors_of_sparse_ratings,
    exponent,
    speed_of_ascent,
)

STUDY = harness.study("theorems", "The report's theorems in numbers", __doc__ or "")
AXES: dict[str, tuple[float, ...]] = {
    "n": (100, 200, 400, 800, 1600), "K": (4, 16, 64, 256), "d": (8, 16, 32, 64), "ρ": (0.0, 0.1, 0.2, 0.4),
}  # fmt: skip
BOUNDS = ((1_000, 9, 384), (100_000, 16, 384), (1_000_000, 100, 384))  # n, K, d whose bound is told
STEPS = 150
RATE = 0.03
TESTED = 2000  # fresh queries that a trained model is tested on


def embedded(folder: str, queries: int, documents: int) -> Similarities:
    """The similarities of so many queries that have a relevant document, to these and to others, so many documents."""
    files = BeirFiles(folder)
    bodies = {key: f"{title} {text}".strip() for key, title, text in files.documents()}
    relevant: dict[str, list[str]] = {}
    for split in ("train", "dev", "test"):
        if (name := files.find_optional(f"qrels/{split}.tsv")) is None:
            continue
        for query, document, grade in files.grades(name):
            if grade > 0 and document in bodies:
                relevant.setdefault(query, []).append(document)
    texts = {key: text for key, text in files.queries() if key in relevant}
    asked = sorted(texts, key=lambda key: digest("sample", "theorems", key))[:queries]
    wanted = dict.fromkeys(document for query in asked for document in relevant[query])
    wanted |= dict.fromkeys(sorted(bodies, key=lambda key: digest("sample", "theorems", key)))
    shown = list(wanted)[: max(documents, 1)]
    row = {key: number for number, key in enumerate(shown)}
    model = BiEncoder.load(PACKAGED, max_tokens=128)
    query_Qd = model.vectors(model.pairs.of_queries([texts[key] for key in asked]), np.arange(len(asked)))
    document_Dd = model.vectors(model.pairs.of_documents([bodies[key] for key in shown]), np.arange(len(shown)))
    cosine_QD = (query_Qd @ document_Dd.T).astype(np.float64)
    return Similarities.of(cosine_QD, [[row[document] for document in relevant[query]] for query in asked])


@dataclass(frozen=True)
class Sizes:
    """Training queries n, negatives K of each, dimensions d, share ρ of false ones among the negatives."""

    n: int = 800
    K: int = 16
    d: int = 16
    ρ: float = 0.1


@dataclass(frozen=True)
class Trained:
    """Losses of a trained model: on its training lists, on fresh ones of the same kind, on fresh ones without a false
    negative."""

    train: float
    test: float
    clean: float


@cache
def trained(sizes: Sizes, seed: int) -> Trained:
    """Train the cosine of a matrix times the query with documents."""
    random = rng("study", "theorems", "gap", *map(str, asdict(sizes).values()), seed)
    d = sizes.d
    rotation = np.linalg.qr(random.normal(size=(d, d)))[0]

    def unit(*shape: int) -> np.ndarray:
        drawn = random.normal(size=shape)
        return drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)

    def drawn(count: int, rho: float) -> tuple[torch.Tensor, torch.Tensor]:
        query_Bd = unit(count, d)
        noise_BKd = unit(count, 1 + sizes.K, d)
        relevant_BK = random.random((count, 1 + sizes.K)) < rho
        relevant_BK[:, 0] = True
        document_BKd = noise_BKd + relevant_BK[:, :, None] * (query_Bd @ rotation)[:, None]
        documents = normalize(torch.from_numpy(document_BKd).float(), dim=-1)
        return torch.from_numpy(query_Bd).float(), documents

    def loss(matrix: torch.Tensor, query_Bd: torch.Tensor, document_BKd: torch.Tensor) -> torch.Tensor:
        score_BK = torch.einsum("bd,bkd->bk", normalize(query_Bd @ matrix, dim=-1), document_BKd)
        ones = torch.ones_like(score_BK)
        return weighted_infonce(score_BK, ones, ones.bool(), TAU).mean()

    train, test, clean = drawn(sizes.n, sizes.ρ), drawn(TESTED, sizes.ρ), drawn(TESTED, 0.0)
    matrix = torch.eye(d, requires_grad=True)
    adam = torch.optim.Adam([matrix], RATE)
    for _ in range(STEPS):
        adam.zero_grad()
        loss(matrix, *train).backward()
        adam.step()
    with torch.no_grad():
        return Trained(*(float(loss(matrix, *lists)) for lists in (train, test, clean)))


def generalisation(real: Similarities, seeds: int) -> Findings:
    """Theorem 13: the gap of a small model against n, K, d and ρ; and the bound's value."""
    rows = []
    gaps: dict[str, list[list[float]]] = {}
    cleans: dict[str, list[list[float]]] = {}
    for axis, values in AXES.items():
        for value in values:
            sizes = replace(Sizes(), **{axis: value})
            found = [trained(sizes, seed) for seed in range(seeds)]
            gaps.setdefault(axis, []).append([one.test - one.train for one in found])
            cleans.setdefault(axis, []).append([one.clean - one.train for one in found])
            shown = (Level.of(one.train for one in found), Level.of(gaps[axis][-1]), Level.of(cleans[axis][-1]))
            rows.append((axis, f"{value:g}", *map(str, shown)))
    log_nK = np.sqrt(np.log(np.array(AXES["K"]) * Sizes().n))[:, None]
    of_n, of_d = (exponent(AXES[axis], gaps[axis]) for axis in "nd")
    of_K = exponent(AXES["K"], gaps["K"] / log_nK)
    same, clean = (Level.of(np.polyfit(AXES["ρ"], np.array(each["ρ"]), 1)[0]) for each in (gaps, cleans))
    grows = "gap/√log(nK) grows with K: an exponent above .1"
    found = [
        Claim.judged("13, in n", "the gap falls as √(1/n)", "an exponent above −.5", of_n, high=-0.5),
        Claim.judged("13, in d", "it grows as √d", "an exponent above .5", of_d, high=0.5),
        Claim.judged("13, in K", "it grows as √log(nK)", grows, of_K, high=GROWN),
        Claim.judged("13, in ρ", "false negatives add to it", "a slope below 0, tested as trained", same, low=0.0),
        Claim.judged("13, in ρ, true labels", "the same", "a slope below 0, tested without them", clean, low=0.0),
    ]
    claim, bound = _bound(real)
    title = f"Theorem 13: InfoNCE and its gap to fresh queries, {seeds} seeds; else n = 800, K = 16, d = 16, ρ = .1"
    columns = ("varied", "value", "training loss", "gap", "gap, tested without false negatives")
    return [claim, *found], [bound, Table(title, columns, rows)]


def _bound(real: Similarities) -> tuple[Claim, Table]:
    """The bound with constants of one, at the collection's mean similarity of a first negative."""
    highest = float(real.lists[:, 1].mean())
    second = 0.1 * math.exp(highest / TAU)
    rows = []
    says = []
    for n, K, d in BOUNDS:
        first = math.sqrt(d * math.log(n * K) / n)
        largest = math.log1p(K * math.exp(2.0 / TAU))
        says.append(first + second < largest)
        shown = (f"{first:.2f}", f"{second:.0f}", f"{math.log1p(K):.1f}", f"{largest:.1f}")
        rows.append((f"{n:,}", str(K), str(d), *shown, f"{max(0.0, largest - first) / (10.0 * second):.4f}"))
    title = f"Theorem 13: the bound's terms, constants of one, s_max = {highest:.2f}, τ = {TAU:g}, ρ = .1"
    columns = ("n", "K", "d", "first term", "second term", "loss of equal scores", "largest loss there is",
               "ρ from which the bound says nothing")  # fmt: skip
    measured = f"second term {second:.0f}, largest loss {rows[-1][-2]}"
    verdict = "holds" if all(says) else "fails"
    claim = Claim("13, the bound", "the gap is bounded", "by more than the largest loss there is", measured, verdict)
    return claim, Table(title, columns, rows)


def main(words: Sequence[str] | None = None) -> None:
    """Try all sentences, print a table of verdicts and those behind it."""
    parser = harness.parser(STUDY, seeds=5, data=True)
    parser.add_argument("--queries", type=int, default=250, help="queries of the collection")
    parser.add_argument("--documents", type=int, default=1000, help="its documents, the queries' relevant ones first")
    given = parser.parse_args(words)

    def run() -> Results:
        folders = list(harness.folders(given.data).values())
        if len(folders) != 1:
            raise ConfigError(f"{len(folders)} collections are given, must be one", "--data", "give NAME=FOLDER")
        torch.set_num_threads(given.workers)
        real = embedded(folders[0], given.queries, given.documents)
        parts = [hard_negatives(real), variation(real), decomposition(real), false_negatives(real)]
        seeded = (errors_of_sparse_ratings, speed_of_ascent, algorithm1, partial(generalisation, real))
        parts += [part(given.seeds) for part in seeded]
        claims = [claim for found, _ in parts for claim in found]
        columns = ("", "sentence", "refuted by", "measured", "verdict")
        verdicts = Table("Verdicts", columns, [claim.row for claim in claims])
        values = {"claims": [asdict(claim) for claim in claims]}
        return Results([verdicts, *(table for _, tables in parts for table in tables)], values=values)

    harness.carry_out(STUDY, given, run)


if __name__ == "__main__":
    main()
