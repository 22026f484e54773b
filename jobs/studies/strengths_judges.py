"""What is a judge's preference worth? Strengths from confidence of real judges, against assessors' grades.

    python jobs/studies/strengths_judges.py [--gpt dl2019_judgments.csv --grades test.tsv] [--labels DIR]

Question and criterion: strengths.py. Strengths are compared with `unit` by the τ-b and nDCG@10 of ratings with the
assessors' grades, query by query (paired randomisation test, Holm over strengths).

--gpt: GPT-4o's single verdicts on TREC DL 2019; a pair whose two orders disagreed is a tie. --labels: LLMJudge's graded
labels by LLM judges. Three judges' labels made pairwise are an ensemble with ties on a random regular graph (`votes`,
three answers a pair). `distilled` is a real, calibrated model of that ensemble: a ternary regression (first, tie,
second; P(tie) = 1 - |C|) on two weaker judges' labels, fitted on half of the queries and asked about the other half; a
model's E|C| is 1 - P(tie). `sharp` is the same at temperature 1/2. Judges were chosen by name before any result; a
query's measures are means over graphs.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
from numpy.typing import NDArray
from scipy import optimize, special, stats

from anmi_ray.comparisons.graph import k_regular
from anmi_ray.evaluation.significance import bootstrap_interval, holm, paired_randomisation
from anmi_ray.identity import rng
from anmi_ray.rating.games import Games
from anmi_ray.rating.preferences import read_preferences
from anmi_ray.rating.simulate import Played, bucket
from anmi_ray.rating.strengths import error_variance, games_worth
from anmi_ray.scale import Floats
from jobs.studies.rating_models import judgments
from jobs.studies.strengths import DEGREE, FLOOR_SD, by_strength

ENSEMBLE = ("RMITIR-llama70B", "willia-umbrela1", "h2oloo-zeroshot1")
WEAK = ("RMITIR-llama38b", "TREMA-direct")
GRAPHS, RIDGE = 3, 1e-3
Labels = NDArray[np.float64]


def measures(games: Games, latent: Floats, grade: Floats) -> Floats:
    """(τ-b, nDCG@10)[2, Q] of ratings with grades float64[D], documents without one (NaN) left out."""
    columns = []
    for start, stop in zip(games.doc_start[:-1], games.doc_start[1:], strict=True):
        known = ~np.isnan(grade[start:stop])
        e, g = latent[start:stop][known], grade[start:stop][known]
        discount = 1.0 / np.log2(np.arange(2, 12))
        top, best = g[np.argsort(-e, kind="stable")][:10], np.sort(g)[::-1][:10]
        ideal = float(best @ discount[: len(best)])
        columns.append((stats.kendalltau(e, g)[0], float(top @ discount[: len(top)]) / ideal if ideal else np.nan))
    return np.array(columns).T


def print_table(title: str, found: dict[str, Floats]) -> None:
    """One row a strength: both measures, float64[2, Q], and their differences from unit's."""
    base = found["unit"]
    names = [name for name in found if name != "unit"]
    print(f"\n{title}, {base.shape[1]} queries\n")
    print("| strength | τ-b | less unit's | p (Holm) | nDCG@10 | less unit's | p (Holm) |")
    print("|---" * 7 + "|")
    corrected = [holm([paired_randomisation(found[name][k], base[k]) for name in names]) for k in (0, 1)]
    for name, value in found.items():
        cells = [f"| {name}"]
        for k in (0, 1):
            cells.append(f"{value[k].mean():.4f}")
            if name == "unit":
                cells += ["", ""]
                continue
            low, high = bootstrap_interval(value[k] - base[k])
            p = corrected[k][names.index(name)]
            cells += [f"{(value[k] - base[k]).mean():+.4f} [{low:+.4f}, {high:+.4f}]", f"{p:.3f}"]
        print(" | ".join(cells) + " |", flush=True)


def gpt(path: Path, qrels: Path) -> None:
    """Table of GPT-4o's single verdicts."""
    read = read_preferences(judgments(path))
    games = read.games()
    table = pacsv.read_csv(qrels, parse_options=pacsv.ParseOptions(delimiter="\t"))
    names = [table[name].cast(pa.string()).to_pylist() for name in ("query-id", "corpus-id")]
    grade_of = dict(zip(zip(*names, strict=True), table["score"].to_pylist(), strict=True))
    query = read.names("query_id", pa.array(map(bytes, games.query_ids[games.query_of_doc]), pa.binary(16))).to_pylist()
    doc = read.names("doc_id", pa.array(map(bytes, games.doc_ids), pa.binary(16))).to_pylist()
    grade = np.array([grade_of.get(key, np.nan) for key in zip(query, doc, strict=True)])
    p = (games.w + 0.5) / 2.0  # one vote, and one spread evenly over win, tie and loss
    derived = games_worth(p, error_variance(p, (2.0 * np.abs(games.w - 0.5) + 2.0 / 3.0) / 2.0, latent_sd=FLOOR_SD))
    found = {name: measures(games, e, grade) for name, e in by_strength(games, derived).items()}
    print_table("GPT-4o, single verdicts", found)


def features(first: Labels, second: Labels) -> tuple[Floats, Floats]:
    """What changes sign when documents are swapped, and what does not, from weak labels [P, 2] of both."""
    d = first - second
    turned = np.concatenate([d, np.sign(d), d[:, :1] * (first + second)[:, 1:]], axis=1)
    same = np.concatenate(
        [np.ones((len(d), 1)), np.abs(d), d == 0.0, np.abs(d[:, :1] - d[:, 1:]), first + second], axis=1
    )
    return turned, same


def ternary(turned: Floats, same: Floats, weight: Floats) -> Floats:
    """P(first, tie, second)[3, P] at a weight of every feature; swapping documents swaps first and second."""
    lead = turned @ weight[: turned.shape[1]]
    return special.softmax(np.stack([0.5 * lead, same @ weight[turned.shape[1] :], -0.5 * lead]), axis=0)


def fit_ternary(turned: Floats, same: Floats, score: Floats) -> Floats:
    """Weights of least cross-entropy to targets P(tie) = 1 - |C|, the rest on the preferred side; score C[P]."""
    target = np.stack([np.maximum(score, 0.0), 1.0 - np.abs(score), np.maximum(-score, 0.0)])

    def loss(weight: Floats) -> tuple[float, Floats]:
        told = ternary(turned, same, weight)
        off = (told - target) / len(score)
        slope = np.concatenate([turned.T @ (0.5 * (off[0] - off[2])), same.T @ off[1]])
        value = -np.sum(target * np.log(np.maximum(told, 1e-300))) / len(score)
        return float(value + 0.5 * RIDGE * weight @ weight), slope + RIDGE * weight

    start = np.zeros(turned.shape[1] + same.shape[1])
    return optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 500}).x


def ensemble(folder: Path) -> None:
    """Tables of the three judges' votes and of the model distilled from them."""
    table = pacsv.read_csv(folder / "llm_labels" / "all_judges.csv")
    query = np.array(table["qid"].to_pylist())
    strong, weak = (np.stack([table[n].to_numpy() for n in names], axis=1).astype(float) for names in (ENSEMBLE, WEAK))
    human = table["human"].to_numpy().astype(float)
    rows = [np.flatnonzero(query == name) for name in sorted(set(query))]
    grade = np.concatenate([human[r] for r in rows])
    found: dict[str, dict[str, list[Floats]]] = {"votes": {}, "distilled": {}, "sharp": {}}
    for graph in range(GRAPHS):
        pairs = []
        for number, r in enumerate(rows):
            drawn = k_regular(len(r), DEGREE, rng("strengths", graph, number))
            pairs.append(drawn[np.argsort(drawn[:, 0], kind="stable")])
        score = [
            np.sign(strong[r[ij[:, 0]]] - strong[r[ij[:, 1]]]).mean(axis=1) for r, ij in zip(rows, pairs, strict=True)
        ]
        shown = [features(weak[r[ij[:, 0]]], weak[r[ij[:, 1]]]) for r, ij in zip(rows, pairs, strict=True)]
        told: list[Floats] = [np.empty(0)] * len(rows)
        for half in (0, 1):
            learn = [q for q in range(len(rows)) if q % 2 != half]
            inputs = [np.concatenate([shown[q][k] for q in learn]) for k in (0, 1)]
            weight = fit_ternary(inputs[0], inputs[1], np.concatenate([score[q] for q in learn]))
            for q in range(half, len(rows), 2):
                told[q] = ternary(*shown[q], weight)
        every = np.concatenate(score)
        if graph == 0:
            _calibration(np.concatenate(told, axis=1), every)
        for name, kept in found.items():
            games, derived = _games(name, pairs, [len(r) for r in rows], score, told)
            for strength, latent in by_strength(games, derived).items():
                kept.setdefault(strength, []).append(measures(games, latent, grade))
    for name, kept in found.items():
        print_table(f"LLMJudge, {name}", {s: np.mean(values, axis=0) for s, values in kept.items()})


def _games(
    name: str, pairs: list[NDArray[np.int64]], sizes: list[int], score: list[Floats], told: list[Floats]
) -> tuple[Games, Floats]:
    """Games of all queries and the strength `derived` of each."""
    if name == "votes":
        w, answers, tie = [0.5 + 0.5 * c for c in score], 3.0, None
        p = (3.0 * np.concatenate(w) + 0.5) / 4.0
        decided = (3.0 * np.abs(np.concatenate(score)) + 2.0 / 3.0) / 4.0
        derived = games_worth(p, error_variance(p, decided, 3.0, FLOOR_SD))
    else:
        power = 2.0 if name == "sharp" else 1.0
        chance = [special.softmax(power * np.log(one), axis=0) for one in told]
        w, answers, tie = [one[0] + 0.5 * one[1] for one in chance], 1.0, np.concatenate([one[1] for one in chance])
        derived = games_worth(np.concatenate(w), error_variance(np.concatenate(w), 1.0 - tie, latent_sd=FLOOR_SD))
    played = [
        Played(ij, one, np.full(len(one), answers), np.zeros(n)) for ij, one, n in zip(pairs, w, sizes, strict=True)
    ]
    return replace(bucket(played)[0], tie=tie), derived


def _calibration(told: Floats, score: Floats) -> None:
    """Print what the model says and what the ensemble said, in five bins of equal population by either prediction."""
    print(
        "\nDistilled, held out: d = |P(first) - P(second)| and the ensemble's C for the side ahead; e = E|C| and |C|\n"
    )
    print("| pairs | d | C | e | abs C |\n|---|---|---|---|---|")
    lead, consensus = told[0] - told[2], 1.0 - told[1]
    by_lead = np.array_split(np.argsort(np.abs(lead), kind="stable"), 5)
    by_consensus = np.array_split(np.argsort(consensus, kind="stable"), 5)
    for a, b in zip(by_lead, by_consensus, strict=True):
        won = (np.sign(lead[a]) * score[a]).mean()
        cells = (np.abs(lead[a]).mean(), won, consensus[b].mean(), np.abs(score[b]).mean())
        print(f"| {len(a):,} | " + " | ".join(f"{value:.3f}" for value in cells) + " |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpt", type=Path, help="GPT-4o's preferences")
    parser.add_argument("--grades", type=Path, help="the assessors' grades for them, BEIR's .tsv")
    parser.add_argument("--labels", type=Path, help="folder with llm_labels/all_judges.csv")
    given = parser.parse_args()
    if given.gpt and given.grades:
        gpt(given.gpt, given.grades)
    if given.labels:
        ensemble(given.labels)


if __name__ == "__main__":
    main()
