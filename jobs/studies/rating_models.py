"""Which rating model explains real judges? Held-out likelihood, agreement with graded labels, the expectancy table.

    python jobs/studies/rating_models.py --judgments dl2019_judgments.csv --qrels test.tsv --votes llmfao.csv --out DIR

--judgments: year,round,qid,winner,loser,kind, one LLM's preferences; a row of kind tie_broken_by_length is a pair whose
two orders disagreed, and counts as a tie. --qrels: query-id, corpus-id, score, tab-separated. --votes:
left,right,winner (left, right or tie), people's votes between systems, one tournament. Either may be left out.

Held out: five folds of pairs by hash; ratings, prior, dispersion and habits come from the other four. Scored are
outcomes, whose probability is the posterior's mean. `decided` scores wins and losses given that it was no tie;
`all three` scores ties too, where a model without them says a constant rate, that of the other folds. Intervals are
bootstrapped over queries (judgments) or pairs (votes); differences are to Thurstone with ties as half wins.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from numpy.typing import NDArray
from scipy import stats

from anmi_ray import environment
from anmi_ray.config.rate import RateConfig
from anmi_ray.evaluation import svg
from anmi_ray.identity import doc_id, uniforms
from anmi_ray.rating.diagnostics import components
from anmi_ray.rating.games import Games, subset
from anmi_ray.rating.gaussian import gaps, propagate
from anmi_ray.rating.globals import globals_of, posterior
from anmi_ray.rating.likelihood import Likelihood, game_log_likelihood
from anmi_ray.rating.named import rate_preferences
from anmi_ray.rating.preferences import read_preferences
from anmi_ray.rating.solver import solve
from anmi_ray.rating.uncertainty import game_variances
from anmi_ray.scale import Floats, to_elo

FOLDS, ROUNDS, BINS = 5, 2000, 12
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
MODELS: dict[str, RateConfig] = {
    "Thurstone": RateConfig(),
    "Thurstone, lapse": RateConfig(lapse="fitted"),
    "Thurstone, ties (Glenn-David)": RateConfig(ties="glenn-david"),
    "Bradley-Terry": RateConfig(model="bradley-terry"),
    "Bradley-Terry, lapse": RateConfig(model="bradley-terry", lapse="fitted"),
    "Bradley-Terry, ties (Davidson)": RateConfig(model="bradley-terry", ties="davidson"),
    "Bradley-Terry, ties (Rao-Kupper)": RateConfig(model="bradley-terry", ties="rao-kupper"),
}
BASE = "Thurstone"


@dataclass(frozen=True)
class Predicted:
    """Held-out games: unit of resampling, outcome (1, 1/2, 0), P(win), P(tie), P(loss), the gap in points."""

    unit: NDArray[np.int64]
    outcome: Floats
    win: Floats
    tie: Floats
    loss: Floats
    gap_elo: Floats


def judgments(path: Path, tie: float = 0.5) -> pa.Table:
    """An LLM's preferences as rows of `anmi rate`; a pair decided by length gets the preference `tie`."""
    table = pacsv.read_csv(path)
    text = {name: table[name].cast(pa.string()) for name in ("qid", "winner", "loser")}
    preference = pc.if_else(pc.equal(table["kind"], "tie_broken_by_length"), tie, 1.0)
    return pa.table(
        {"query_id": text["qid"], "doc_a": text["winner"], "doc_b": text["loser"], "preference": preference}
    )


def votes(path: Path) -> pa.Table:
    """Votes between systems as rows of one query."""
    table = pacsv.read_csv(path)
    tied = pc.if_else(pc.equal(table["winner"], "tie"), 0.5, 0.0)
    preference = pc.if_else(pc.equal(table["winner"], "left"), 1.0, tied)
    count = table.num_rows
    return pa.table(
        {"query_id": ["votes"] * count, "doc_a": table["left"], "doc_b": table["right"], "preference": preference}
    )


def held_out(games: Games, config: RateConfig, by_query: bool) -> Predicted:
    """Predictions of every game from the folds that do not hold its pair."""
    first, second = games.global_ends()
    low, high = np.minimum(first, second), np.maximum(first, second)
    keys, pair = np.unique(low * len(games.doc_ids) + high, return_inverse=True)
    ids = np.frombuffer(b"".join(doc_id(str(key)) for key in keys.tolist()), np.uint8).reshape(-1, 16)
    fold = np.floor(FOLDS * uniforms(ids, "fold")).astype(int)[pair]
    columns = np.zeros((4, len(games.w)))
    for k in range(FOLDS):
        out = fold == k
        columns[:, out] = _predict(games, config, out)
    unit = games.query_of_game if by_query else pair
    return Predicted(unit, games.w, columns[0], columns[1], columns[2], to_elo(columns[3], config.model))


def _predict(games: Games, config: RateConfig, out: NDArray[np.bool_]) -> Floats:
    """(win, tie, loss, latent gap)[4, held out] of the games `out` from the others: strength zero carries nothing."""
    threads = environment.cores()
    shared = globals_of(subset(games, np.ones(len(games.doc_ids), dtype=np.bool_), ~out), config, threads)
    m = np.where(out, 0.0, games.answers / shared.dispersion)
    like = shared.likelihood()
    target = posterior(games, like, m, shared.prior())
    found = propagate(target, solve(target, 1e-8, 200, threads=threads).latent, threads)
    gap = gaps(target, found.mean)[out]
    width = np.sqrt(game_variances(target, found.weight, components(games).component, threads)[out])
    rate = float(np.mean(games.w[~out] == 0.5))
    shares = np.zeros((3, len(gap)))
    for node, weight in zip(_NODES, _WEIGHTS / _WEIGHTS.sum(), strict=True):
        shares += weight * _outcomes(like, gap + width * node, rate)
    return np.vstack([shares, gap])


def _outcomes(like: Likelihood, x: Floats, rate: float) -> Floats:
    """P(win), P(tie), P(loss)[3, P] at gaps x; without a model of ties a constant share `rate`."""
    tied = like.width > 0.0
    p = np.exp([[game_log_likelihood(like, float(v), outcome) for v in x] for outcome in (1.0, 0.5, 0.0)])
    return p if tied else np.array([(1.0 - rate) * p[0], np.full(len(x), rate), (1.0 - rate) * p[2]])


def scores(p: Predicted) -> tuple[Floats, Floats]:
    """(log P of the outcome among all three, log P of a decided outcome given that it was no tie: NaN for ties)."""
    chosen = np.where(p.outcome == 1.0, p.win, np.where(p.outcome == 0.0, p.loss, p.tie))
    decided = np.where(p.outcome == 0.5, np.nan, chosen / (p.win + p.loss))
    with np.errstate(divide="ignore"):
        return np.log(chosen), np.log(decided)


def interval(value: Floats, unit: NDArray[np.int64]) -> tuple[float, float, float]:
    """Mean of the values that are there, with a 95 % bootstrap interval over units."""
    there = ~np.isnan(value)
    _, unit = np.unique(unit[there], return_inverse=True)
    total, count = np.bincount(unit, value[there]), np.bincount(unit)
    draws = np.random.default_rng(0).multinomial(len(total), np.full(len(total), 1.0 / len(total)), ROUNDS)
    means = (draws @ total) / (draws @ count)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(total.sum() / count.sum()), float(low), float(high)


def compare(name: str, table: pa.Table, by_query: bool) -> Predicted:
    """Print the held-out table of one set of games; the base model's predictions."""
    games = read_preferences(table).games()
    tied = bool((games.w == 0.5).any())
    print(f"\n{name}: {games.queries} queries, {len(games.doc_ids):,} documents, {len(games.w):,} games, "
          f"{np.mean(games.w == 0.5):.1%} ties; mean log-likelihood of held-out outcomes\n")  # fmt: skip
    print("| model | decided | less Thurstone | all three | less Thurstone |\n|---|---|---|---|---|")
    found = {model: held_out(games, config, by_query) for model, config in MODELS.items()}
    base = scores(found[BASE])
    for model, predicted in found.items():
        cells = []
        for value, reference in reversed(list(zip(scores(predicted), base, strict=True))):
            mean, _, _ = interval(value, predicted.unit)
            difference, low, high = interval(value - reference, predicted.unit)
            cells += [f"{mean:.4f}", "" if model == BASE else f"{difference:+.4f} [{low:+.4f}, {high:+.4f}]"]
        print(f"| {model} | {' | '.join(cells if tied else [*cells[:2], '', ''])} |", flush=True)
    return found[BASE]


def expectancy(p: Predicted) -> list[tuple[int, float, float, float, float, float]]:
    """(games, predicted gap, predicted preference, observed, its interval) in bins of equal population by gap ≥ 0."""
    sign = np.where(p.gap_elo >= 0.0, 1.0, -1.0)
    gap, observed = np.abs(p.gap_elo), np.where(sign > 0, p.outcome, 1.0 - p.outcome)
    mean = p.win + 0.5 * p.tie
    mean = np.where(sign > 0, mean, 1.0 - mean)
    rows = []
    for rows_of in np.array_split(np.argsort(gap, kind="stable"), BINS):
        value, low, high = interval(observed[rows_of], p.unit[rows_of])
        rows.append((len(rows_of), float(gap[rows_of].mean()), float(mean[rows_of].mean()), value, low, high))
    return rows


def expectancy_table(name: str, p: Predicted, out: Path) -> None:
    """Print the table and draw it: observed against predicted preference for the document ahead."""
    rows = expectancy(p)
    print(f"\n{name}, expectancy, held out ({BASE})\n")
    print("| games | gap | predicted | observed |\n|---|---|---|---|")
    for count, gap, predicted, value, low, high in rows:
        print(f"| {count:,} | {gap:.0f} | {predicted:.3f} | {value:.3f} [{low:.3f}, {high:.3f}] |")
    x = svg.axis([row[1] for row in rows], 60.0, 460.0, zero=True)
    y = svg.axis([0.4, 1.0, *(row[4] for row in rows)], 290.0, 50.0, 0.0)
    parts = [
        svg.text(60.0, 28, f"{name}: preference for the document ahead", "label", "start"),
        svg.bottom_axis(x, 290.0, 50.0, "predicted gap, Elo points"),
        svg.left_axis(y, 60.0, 460.0, "held-out preference"),
        svg.path([(x(row[1]), y(row[2])) for row in rows], "line second"),
    ]
    for count, gap, _, value, low, high in rows:
        parts.append(svg.line(x(gap), y(low), x(gap), y(high), "whisker main"))
        parts.append(svg.circle(x(gap), y(value), 4.2, "dot main", f"{count:,} games"))
    parts.append(svg.legend([("main", "observed, 95 % interval"), ("second", "predicted")], 250.0, 250.0))
    path = out / f"expectancy-{name}.svg"
    path.write_text(svg.standalone(svg.WIDTH, 340.0, svg.join(parts)), encoding="utf-8")
    print(f"\n-> {path}")


def agreement(path: Path, qrels: Path) -> None:
    """Print the mean Kendall τ-b per query of ratings with grades, by model and by how ties are counted."""
    graded = pacsv.read_csv(qrels, parse_options=pacsv.ParseOptions(delimiter="\t"))
    names = [graded[name].cast(pa.string()).to_pylist() for name in ("query-id", "corpus-id")]
    grade = dict(zip(zip(*names, strict=True), graded["score"].to_pylist(), strict=True))
    table = judgments(path)
    ties = pc.equal(table["preference"], 0.5)
    weak = table.append_column("games", pc.if_else(ties, 0.5, 1.0))
    variants: dict[str, tuple[pa.Table, RateConfig]] = {
        "Thurstone": (table, RateConfig()),
        "Thurstone, prior sd 1": (table, RateConfig(prior=1.0)),
        "Thurstone, the longer one won": (judgments(path, 1.0), RateConfig()),
        "Thurstone, ties left out": (table.filter(pc.invert(ties)), RateConfig()),
        "Thurstone, ties half as strong": (weak, RateConfig()),
    } | {name: (table, config) for name, config in MODELS.items() if name != "Thurstone"}
    print("\nKendall τ-b with the grades, mean over queries\n\n| model | τ-b | less Thurstone |\n|---|---|---|")
    base: Floats | None = None
    for name, (rows, config) in variants.items():
        tau = _taus(rate_preferences(rows, config, threads=environment.cores()).ratings, grade)
        base = tau if base is None else base
        mean, low, high = interval(tau, np.arange(len(tau)))
        cell = ""
        if name != "Thurstone":
            difference = interval(tau - base, np.arange(len(tau)))
            cell = f"{difference[0]:+.4f} [{difference[1]:+.4f}, {difference[2]:+.4f}]"
        print(f"| {name} | {mean:.4f} [{low:.3f}, {high:.3f}] | {cell} |", flush=True)


def _taus(ratings: pa.Table, grade: dict[tuple[str, str], int]) -> Floats:
    by_query: dict[str, list[tuple[float, int]]] = {}
    for row in ratings.select(["query_id", "doc_id", "latent"]).to_pylist():
        if (row["query_id"], row["doc_id"]) in grade:
            known = grade[row["query_id"], row["doc_id"]]
            by_query.setdefault(row["query_id"], []).append((row["latent"], known))
    columns = (np.array(by_query[query]).T for query in sorted(by_query))
    return np.array([stats.kendalltau(*pair)[0] for pair in columns])


def main() -> None:
    """Print the tables, draw the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judgments", type=Path)
    parser.add_argument("--qrels", type=Path)
    parser.add_argument("--votes", type=Path)
    parser.add_argument("--out", type=Path, default=Path("."))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.judgments and given.qrels:
        agreement(given.judgments, given.qrels)
    if given.judgments:
        expectancy_table("judgments", compare("judgments", judgments(given.judgments), True), given.out)
    if given.votes:
        expectancy_table("votes", compare("votes", votes(given.votes), False), given.out)


if __name__ == "__main__":
    main()
