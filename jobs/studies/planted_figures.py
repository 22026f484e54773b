"""Tables and verdicts of the study of planted false negatives, from what its trainings found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from anmi_ray.evaluation.replicates import (
    Contrast,
    contrast,
    family,
    markdown,
    smallest_difference,
    stratified_interval,
)
from anmi_ray.identity import rng
from jobs.studies.planted_gradients import slope
from jobs.studies.small_trainings import heading, stacked

Reals = NDArray[np.float64]
Found = Mapping[str, Mapping[str, Any]]
CLEAN = {"debiased": "bounded"}  # with nothing planted the two are one loss
UNRELATED = 0.1  # mean size of a cosine up to which two gradients are called unrelated
GROUPS = ("last layer", "last two transformer layers", "all that is trained")
ROUNDS = 4000


class Trainings:
    """What was found, by loss and rate, seeds in order."""

    def __init__(self, found: Found) -> None:
        self.of: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
        for one in found.values():
            self.of.setdefault((one["loss"], one["rate"]), []).append(one)
        self.losses = list(dict.fromkeys(loss for loss, _ in self.of))
        self.rates = sorted({rate for _, rate in self.of if rate})

    def clean(self, loss: str) -> list[Mapping[str, Any]]:
        """The trainings of a loss without anything planted."""
        return self.of[CLEAN.get(loss, loss), 0.0]

    def ndcg(self, loss: str, rate: float) -> Reals:
        """Values less those of the clean training of the same seed, float64[S, Q]."""
        ours, clean = (stacked([one["ndcg"] for one in ones]) for ones in (self.of[loss, rate], self.clean(loss)))
        return ours - clean

    def fall(self, loss: str, rate: float, column: int = 0) -> Reals:
        """By planted document, its standing (0: in sd, 1: as a share) less its clean twin's, float64[S, N]."""
        ones = self.of[loss, rate]
        planted = list(ones[0]["standing"])[: len(ones[0]["weights"])]
        rows = [[run["standing"][name][column] for name in planted] for run in ones]
        twins = [[run["standing"][name][column] for name in planted] for run in self.clean(loss)]
        return np.array(rows) - np.array(twins)


def show(found: Found) -> None:
    """All tables."""
    of = Trainings(found)
    most = max(of.rates)
    some = of.of["InfoNCE", most][0]
    held = f"{len(some['ndcg'])} held-out queries, {len(of.of['InfoNCE', most])} seeds"
    planted = f"{len(some['weights'])} hold a planted document, {some['share']:.1%} of the negatives"
    print(f"{some['lists']} lists; at {most:.0%} {planted}. {held}.\n")
    _levels(of)
    _damages(of, "nDCG@10 against nothing planted", of.ndcg)
    _damages(of, "Standing of planted documents in sd of scores, against nothing planted", of.fall)
    if {"hybrid", "regression"} <= set(of.losses):
        _mixed(of, most)
    _gradients(of, most)
    _exponents(of, most)
    if "hybrid" in of.losses:
        _directions(of.of["hybrid", most])


def _levels(of: Trainings) -> None:
    changes = [f"change at {rate:.0%}" for rate in of.rates]
    falls = [f"planted documents' change at {rate:.0%}, sd" for rate in of.rates]
    shares = ", ".join(f"{rate:.0%}" for rate in of.rates)
    print(heading("loss", "nDCG@10, none planted", *changes, *falls, f"negatives that planted outrank: none, {shares}"))
    for loss in of.losses:
        level = stacked([one["ndcg"] for one in of.clean(loss)]).mean()
        changes = [str(contrast(loss, "clean", [of.ndcg(loss, rate)])) for rate in of.rates]
        falls = [_short(contrast(loss, "clean", [of.fall(loss, rate)])) for rate in of.rates]
        most = max(of.rates)
        names = list(of.of[loss, most][0]["standing"])
        clean = np.mean([[one["standing"][name][1] for name in names] for one in of.clean(loss)])
        shares = [clean + of.fall(loss, rate, 1).mean() for rate in of.rates]
        said = ", ".join(f"{one:.2f}" for one in (clean, *shares))
        print(f"| {loss} | {level:.3f} | {' | '.join([*changes, *falls])} | {said} |")


def _short(one: Contrast) -> str:
    return f"{one.difference:+.2f} [{one.low:+.2f}, {one.high:+.2f}]"


def _damages(of: Trainings, title: str, measure: Callable[[str, float], Reals]) -> None:
    """Every loss against its clean twin, and at the largest rate against plain InfoNCE's damage."""
    for rate in of.rates:
        rows = family([contrast(loss, "clean", [measure(loss, rate)]) for loss in of.losses])
        print(f"\n{title}, {rate:.0%} planted\n\n{markdown(rows)}")
        sd = float(np.median([one.query_sd for one in rows]))
        smallest = smallest_difference({"": sd}, {"": rows[0].queries}, len(rows))
        print(f"\nSmallest change to be detected (power .8, {rows[0].queries} values, seeds averaged): {smallest:.3f}.")
    most = max(of.rates)
    plain = measure("InfoNCE", most)
    rows = family([contrast(loss, "InfoNCE", [measure(loss, most) - plain]) for loss in of.losses if loss != "InfoNCE"])
    print(f"\n{title}: change less that of InfoNCE (positive: less damage), {most:.0%} planted\n\n{markdown(rows)}")


def _mixed(of: Trainings, rate: float, alpha: float = 0.7) -> None:
    """Theorem 11's equation: the hybrid's damage less the mixture of both terms' own."""
    print(
        f"\nTheorem 11, {rate:.0%} planted: hybrid's change less {alpha:g} InfoNCE's and {1 - alpha:.1g} regression's"
    )
    for title, measure in (("nDCG@10", of.ndcg), ("standing, sd", of.fall)):
        mixture = alpha * measure("InfoNCE", rate) + (1 - alpha) * measure("regression", rate)
        one = contrast("hybrid", "mixture", [measure("hybrid", rate) - mixture])
        print(f"- {title}: {one}, p = {one.p:.3f}; hybrid {measure('hybrid', rate).mean():+.3f}, "
              f"mixture {mixture.mean():+.3f}")  # fmt: skip


def _gradients(of: Trainings, rate: float) -> None:
    """What both terms do to the score of a planted document, and to other rated negatives."""
    weight, pushes = ("mean weight", "not read"), ("ranking on planted", "on other rated")
    error = ("regression pushes planted up", "others up", "left of ranking's push on planted")
    print(f"\nGradients on scores before every step, {rate:.0%} planted (positive pushes the score down)\n")
    print(heading("loss", *weight, *pushes, *error))
    for loss in of.losses:
        runs = of.of[loss, rate]
        rows = np.array([row[1:] for one in runs for row in one["steps"]], dtype=np.float64).reshape(-1, 4)
        others = np.array([row for one in runs for row in one["others"]], dtype=np.float64).reshape(-1, 2)
        weights = np.array(runs[0]["weights"])
        left = up = rest = ""
        if loss in ("hybrid", "regression"):
            up, rest = _share(rows[:, 3] < 0), _share(others[:, 1] < 0)
        if loss == "hybrid":
            net = 0.7 * rows[:, 2] + 0.3 * rows[:, 3]
            left = f"{net.mean() / (0.7 * rows[:, 2]).mean():.2f}"
        print(f"| {loss} | {weights.mean():.2f} | {(weights == 0).mean():.0%} | {rows[:, 2].mean():.3f} | "
              f"{others[:, 0].mean():.3f} | {up} | {rest} | {left} |")  # fmt: skip
    if cut := [one["clamped"] for one in of.of.get(("debiased", rate), [])]:
        print(f"\nThe debiased correction was cut off in {np.mean(cut):.0%} of the lists.")


def _share(flags: NDArray[np.bool_]) -> str:
    low, high = stats.binomtest(int(flags.sum()), len(flags)).proportion_ci(method="wilson")
    return f"{flags.mean():.0%} [{low:.0%}, {high:.0%}]"


def _exponents(of: Trainings, rate: float) -> None:
    """Theorem 10's form, from real scores: exponents of gradient and damage over w exp(s/τ)/Z."""
    runs = of.of["InfoNCE", rate]
    rows = np.array([row[1:] for one in runs for row in one["steps"]], dtype=np.float64)
    score, p, push = rows[:, 0], rows[:, 1], rows[:, 2]
    print("\nTheorem 10, InfoNCE: exponents (1: proportional)\n\n| of | over | exponent [95 %] |\n|---|---|---|")
    print(f"| the gradient on the score | exp(s/τ)/Z | {_interval(slope, np.log(p), np.log(push))} |")
    print(f"| the same | exp(s/τ), no Z | {_interval(slope, score, np.log(push))} |")
    norms = np.array([row for one in runs for row in one["norms"]])
    print(f"| its norm on all weights | exp(s/τ)/Z | {_interval(slope, *np.log(norms).T)} |")
    falls = dict(zip(list(runs[0]["standing"]), -of.fall("InfoNCE", rate).T, strict=False))
    place = [(float(row[2]), float(falls[row[0]][seed])) for seed, one in enumerate(runs) for row in one["steps"]]
    p, fall = np.array(place).T
    groups = np.array_split(np.argsort(p, kind="stable"), 3)
    said = "; ".join(f"{p[group].mean():.3f}: {fall[group].mean():+.2f} sd" for group in groups)
    print(f"\nWhat it comes to by the end: rank correlation of the fall with exp(s/τ)/Z before the document's step "
          f"{_interval(_rank_correlation, p, fall)}; falls by thirds of exp(s/τ)/Z: {said}.")  # fmt: skip


def _rank_correlation(x: Reals, y: Reals) -> float:
    found: Any = stats.spearmanr(x, y)
    return float(found.statistic)


def _interval(figure: Callable[[Reals, Reals], float], x: Reals, y: Reals) -> str:
    """A figure of pairs, with its 95 % percentile bootstrap interval over them."""
    random = rng("planted", "interval")
    drawn = [figure(x[at], y[at]) for at in random.integers(0, len(x), (ROUNDS // 4, len(x)))]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"{figure(x, y):.3f} [{low:.3f}, {high:.3f}]"


def _directions(runs: Sequence[Mapping[str, Any]]) -> None:
    """Theorem 7 against 8: cosines of both terms' gradients on weights."""
    probes = [probe for one in runs for probe in one["cosines"]]
    print(f"\nCosine of both terms' gradients, {len(probes)} probes of 16 lists, hybrid\n")
    print(heading("documents", "weights", "mean [95 %]", "5 % to 95 % of probes", "mean size", "below 0", "verdict"))
    for documents in ("all", "planted", "others"):
        for group in GROUPS:
            values = np.array([probe[documents][group] for probe in probes])
            low, high = stratified_interval([values], ROUNDS)
            least, largest = np.quantile(values, [0.05, 0.95])
            mean = f"{values.mean():+.2f} [{low:+.2f}, {high:+.2f}] | {least:+.2f} to {largest:+.2f}"
            size = f"{np.abs(values).mean():.2f} | {(values < 0).mean():.0%} | {verdict(values, low, high)}"
            print(f"| {documents} | {group} | {mean} | {size} |")


def verdict(values: Reals, low: float, high: float) -> str:
    """What a cosine's values and the interval of their mean say of Theorems 7 and 8.

    >>> verdict(np.array([-0.9, -0.8]), -0.95, -0.7), verdict(np.array([0.05, -0.05]), -0.1, 0.1)
    ('opposed', 'unrelated')
    """
    if high < 0:
        return "opposed"
    if low > 0:
        return "alike"
    return "unrelated" if np.abs(values).mean() <= UNRELATED else "neither: now alike, now opposed"
