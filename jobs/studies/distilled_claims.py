"""Side claims about distilled pairwise judges, where the truth is known and the training is the product's own.

    python -m jobs.studies.distilled_claims --root DIR [--seeds 3]

Claims: (1) random labels teach y = 1/2; (2) binary, ternary and two-head targets teach the same calibration line; (3) a
ternary's P(tie) tells ties from pairs that are hard, at the same μ; (4) the triangle keeps moving from checkpoint to
checkpoint while accuracy does not; (5) probabilities are calibrated, and what a temperature does to their slope.
Criteria, fixed before the result: those of `anmi_ray.evaluation.pairwise_claims`; accuracy stands still where its
change has an interval within ±1 point; a slope is right where its interval lies within 1 ± .1.

The language and the model: distilled_worlds.py. Every seed is a world of its own with its own words, weights and
queries. Intervals are 95 % over the held-out queries of all seeds together, given these trainings; how trainings
differ is shown by a value of each. Prints Markdown, writes ROOT/page/distilled.html of seed 0.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from anmi_ray.config.distill import Calibration
from anmi_ray.evaluation import pairwise_claims as claims
from anmi_ray.evaluation.distilled_page import write_page
from anmi_ray.evaluation.pairwise import Pairs
from anmi_ray.evaluation.pairwise_measures import (
    accuracy,
    bootstrap,
    brier,
    calibration,
    predictor,
    ratio,
)
from anmi_ray.evaluation.rules_report import Estimate
from anmi_ray.identity import digest, query_id
from anmi_ray.judging import orders
from anmi_ray.records import PREDICTION
from anmi_ray.scale import Floats
from anmi_ray.store import Store
from jobs.studies.distilled_worlds import ARMS, Arm, Size, World, draw, shuffled, trainings
from jobs.studies.small_trainings import heading

LEARNED = ("binary", "ternary", "two-head", "two-head, longer")
NEAR = 0.1  # of μ to 1/2: pairs that the model cannot decide
STILL, STEEP = 0.01, 0.1  # what accuracy may change by, and a slope be off 1


@dataclass(frozen=True)
class Trained:
    """A training: what it learned from, and the logits of its held-out pairs by step."""

    arm: Arm
    world: World
    size: Size
    best: int
    logits: Mapping[int, Floats]

    @property
    def last(self) -> int:
        """The last step."""
        return max(self.logits)

    def fitted(self, step: int, kind: Calibration) -> orders.Fitted:
        """The calibration at `step`, on the pairs that are kept for it."""
        dev = self.size.dev * self.size.per_query
        score = self.world.score_P[self.size.train * self.size.per_query :][:dev]
        return orders.fit(self.logits[step][: 2 * dev], score, self.arm.target, kind)

    def said(self, step: int, kind: Calibration = "none", factor: float = 1.0) -> Pairs:
        """The answers to the report's pairs; `factor` multiplies the temperature."""
        fitted = self.fitted(step, kind)
        fitted = replace(fitted, beta=fitted.beta / factor)
        skipped = (self.size.train + self.size.dev) * self.size.per_query
        rows = self.logits[step][2 * self.size.dev * self.size.per_query :]
        found = orders.averaged(fitted.sharpened(rows), self.arm.target, fitted.isotonic)
        query = self.world.query_P[skipped:]
        score = self.world.score_P[skipped:]
        return Pairs(found.first_P, found.second_P, score, query - query.min(), self.arm.target)


@dataclass(frozen=True)
class Study:
    """All trainings, by arm and seed."""

    trained: Mapping[str, Sequence[Trained]]

    @classmethod
    def of(cls, found: Mapping[str, Sequence[Mapping[str, Any]]], size: Size) -> Study:
        """From what `trainings` gives."""
        made: dict[str, list[Trained]] = {}
        for name, records in found.items():
            for seed, one in enumerate(records):
                world = draw(seed, size)
                world = shuffled(world, seed) if ARMS[name].random else world
                logits = {int(step): np.array(rows) for step, rows in one["logits"].items()}
                made.setdefault(name, []).append(Trained(ARMS[name], world, size, one["best"], logits))
        return cls(made)

    def said(self, name: str, kind: Calibration = "none", last: bool = False, factor: float = 1.0) -> Pairs:
        """The answers of an arm's trainings together, at their chosen checkpoints or their last ones."""
        return pooled([one.said(one.last if last else one.best, kind, factor) for one in self.trained[name]])

    def each(self, name: str, value: Callable[[Trained], float], digits: int = 3) -> str:
        """A number of each training."""
        return " ".join(f"{value(one):.{digits}f}" for one in self.trained[name])

    def hard(self) -> np.ndarray:
        """Whether the report's pairs are hard, bool[P] as in `said`."""
        one = next(iter(self.trained.values()))
        return np.concatenate([each.world.hard_P[-each.size.test * each.size.per_query :] for each in one])

    def ceiling(self) -> float:
        """The share of the report's pairs with consensus where the better document is preferred."""
        right = []
        for one in self.trained["ternary"]:
            last = slice(-one.size.test * one.size.per_query, None)
            score, gap = one.world.score_P[last], one.world.gap_P[last]
            agreed = np.abs(score - 0.5) == 0.5
            right.append((gap > 0)[agreed] == (score > 0.5)[agreed])
        return float(np.concatenate(right).mean())


def pooled(parts: Sequence[Pairs]) -> Pairs:
    """Answers of several worlds, which share no query."""
    start = np.cumsum([0, *(one.queries for one in parts[:-1])])
    return Pairs(
        np.concatenate([one.first_P for one in parts]),
        np.concatenate([one.second_P for one in parts]),
        np.concatenate([one.score_P for one in parts]),
        np.concatenate([one.query_P + offset for one, offset in zip(parts, start, strict=True)]),
        parts[0].target,
    )


def shown(found: Estimate, digits: int = 3) -> str:
    """A number with its interval."""
    if found.mean is None:
        return "none"
    ends = "" if found.low is None else f" [{found.low:.{digits}f}, {found.high:.{digits}f}]"
    return f"{found.mean:.{digits}f}{ends}"


def off_half(pairs: Pairs) -> Estimate:
    """Mean |μ − 1/2|."""
    off = np.abs(pairs.mean_P - 0.5)
    return bootstrap(pairs, np.stack([off, np.ones(len(off))], axis=1), ratio)


def tie_gap(pairs: Pairs, hard_P: np.ndarray, value_P: Floats) -> Estimate:
    """Mean of `value_P` of easy pairs less that of hard ones, where μ is within NEAR of 1/2."""
    near = np.abs(pairs.mean_P - 0.5) < NEAR
    easy, hard = near & ~hard_P, near & hard_P
    sums = np.stack([value_P * easy, easy, value_P * hard, hard], axis=1).astype(np.float64)
    return bootstrap(pairs, sums, lambda total: ratio(total[..., :2]) - ratio(total[..., 2:]))


def row(*cells: object) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def learned(study: Study) -> list[str]:
    """What the real labels teach: accuracy, and calibration before and after."""
    lines = [heading("target", "accuracy where all judges agree", "each training", "calibration", "Brier", "slope")]
    for name in LEARNED:
        for kind in ("none", "temperature", "isotonic"):
            said = study.said(name, kind)
            each = study.each(name, lambda one, kind=kind: accuracy(one.said(one.best, kind)).mean or 0.0)
            cells = shown(accuracy(said)), each, kind, shown(brier(said), 4), shown(calibration(said).slope)
            lines.append(row(name, *cells))
    return [*lines, "", f"The better document is the one that the judges agree on in {study.ceiling():.3f}."]


def flat(study: Study) -> tuple[list[str], dict[str, claims.Claim]]:
    """Claim 1."""
    columns = "labels", "checkpoint", "calibration", "mean abs(μ − ½)", "root mean square", "each training", "y = ½"
    lines, found = [heading(*columns)], {}
    for name in ("random", "random, few", "ternary"):
        for last in (False, True):
            for kind in ("none", "temperature"):
                said = study.said(name, kind, last)
                claim = claims.flat_line(said)
                each = study.each(name, lambda one, k=kind, end=last: _root(one.said(one.last if end else one.best, k)))
                point = "last" if last else "chosen"
                lines.append(row(name, point, kind, shown(off_half(said)), shown(claim.value), each, claim.verdict))
                found[f"{name}, {point}, {kind}"] = claim
    return lines, found


def _root(pairs: Pairs) -> float:
    return float(np.sqrt(np.mean((pairs.mean_P - 0.5) ** 2)))


def lines_of(study: Study) -> tuple[list[str], dict[str, claims.Claim]]:
    """Claim 2."""
    lines, found = [heading("targets", "calibration", "difference of", "value", "each training", "the same")], {}
    for name in ("binary", "two-head", "two-head, longer"):
        for kind in ("none", "temperature"):
            for what, claim in (("curves (rms)", claims.same_line), ("slopes", claims.same_slope)):
                made = claim(study.said("ternary", kind), study.said(name, kind))
                both = zip(study.trained["ternary"], study.trained[name], strict=True)
                each = " ".join(
                    f"{claim(one.said(one.best, kind), two.said(two.best, kind)).value.mean:.3f}" for one, two in both
                )
                lines.append(row(f"{name} and ternary", kind, what, shown(made.value), each, made.verdict))
                found[f"{name}, {kind}, {what}"] = made
    return lines, found


def ties(study: Study) -> tuple[list[str], dict[str, claims.Claim]]:
    """Claim 3."""
    columns = "target", "calibration", "concordance of E abs(C) at the same μ", "each training", "tells ties"
    lines, found, hard = (
        [heading(*columns, f"P(tie), easy less hard, μ within {NEAR} of ½", "observed")],
        {},
        study.hard(),
    )
    for name in LEARNED:
        for kind in ("none", "temperature"):
            said = study.said(name, kind)
            claim = claims.tells_ties(said)
            each = study.each(
                name, lambda one, kind=kind: claims.tells_ties(one.said(one.best, kind)).value.mean or 0.5
            )
            gap = tie_gap(said, hard, said.tie_P), tie_gap(said, hard, 1 - np.abs(2 * said.score_P - 1))
            told = shown(claim.value) if said.two_dimensional else "½: P(tie) is 0"
            verdict = claim.verdict if said.two_dimensional else "fails"
            lines.append(row(name, kind, told, each, verdict, *map(shown, gap)))
            found[f"{name}, {kind}"] = claim
    return lines, found


def moving(study: Study) -> tuple[list[str], dict[str, tuple[claims.Claim, Estimate]]]:
    """Claim 4."""
    columns = "training", "step", "mean abs change of P(tie)", "of μ", "change of mean P(tie)"
    lines, found = [heading(*columns, "change of accuracy", "accuracy")], {}
    for name in ("ternary", "constant rate"):
        steps = sorted(study.trained[name][0].logits)
        points = [(step, pooled([one.said(step) for one in study.trained[name]])) for step in steps]
        for (_, before), (_, now), moved in zip(points, points[1:], claims.movement(points), strict=False):
            change = predictor("", now, before).accuracy_difference
            assert change is not None
            cells = f"{moved.tie:.3f}", f"{moved.mean:.3f}", f"{moved.drift:+.3f}", shown(change), shown(accuracy(now))
            lines.append(row(name, moved.step, *cells))
            found[name] = claims.still_moving(points), change
    return lines, found


def temperatures(study: Study) -> tuple[list[str], dict[str, Estimate]]:
    """Claim 5."""
    columns = "target", "temperature", "slope", "each training", "Brier", "accuracy", "fitted temperatures"
    lines, found = [heading(*columns)], {}
    for name in LEARNED:
        fitted = study.each(name, lambda one: 1.0 / max(one.fitted(one.best, "temperature").beta, 1e-9), 2)
        for factor in (0.5, 1.0, 2.0):
            said = study.said(name, "temperature", factor=factor)
            slope = found[f"{name}, {factor:g}"] = calibration(said).slope
            each = study.each(
                name, lambda one, f=factor: calibration(one.said(one.best, "temperature", f)).slope.mean or 0
            )
            cells = shown(slope), each, shown(brier(said), 4), f"{accuracy(said).mean:.3f}", fitted
            lines.append(row(name, f"× {factor:g}", *cells))
    return lines, found


def answers(
    flat_: Mapping[str, claims.Claim],
    same: Mapping[str, claims.Claim],
    told: Mapping[str, claims.Claim],
    moved: Mapping[str, tuple[claims.Claim, Estimate]],
    slopes: Mapping[str, Estimate],
) -> list[str]:
    """One sentence per claim."""

    def said(found: claims.Claim, digits: int = 3) -> str:
        return f"{found.verdict} ({shown(found.value, digits)})"

    many, few = "random, chosen, temperature", "random, few, last, none"
    between = [
        f"{name} {said(same[f'{name}, none, curves (rms)'])}, slopes {said(same[f'{name}, none, slopes'])}"
        for name in ("binary", "two-head", "two-head, longer")
    ]
    still = [
        f"{name} {said(claim)}, accuracy changes by {shown(change)}: {_stands(change)}"
        for name, (claim, change) in moved.items()
    ]
    right = [f"{name} {shown(slopes[f'{name}, 1'])}: {_right(slopes[f'{name}, 1'])}" for name in LEARNED]
    off = [f"× {factor:g} {shown(slopes[f'ternary, {factor:g}'])}" for factor in (0.5, 2.0)]
    return [
        f"1. Random labels teach y = ½: {said(flat_[many])} for the product's choice of checkpoint and temperature, "
        f"{said(flat_['random, last, none'])} at the last checkpoint as it is; with an eighth of the pairs, each seen "
        f"eight times as often, {said(flat_[few])} at the last checkpoint (trainings differ: see the table) and "
        f"{said(flat_['random, few, last, temperature'])} after calibration.",
        f"2. The targets teach the line of the ternary one, uncalibrated: {'; '.join(between)}. "
        "A target that is not yet learned (see its accuracy) has no line to compare.",
        f"3. P(tie) tells ties from hard pairs of the same μ: ternary {said(told['ternary, none'])}, two-head "
        f"{said(told['two-head, none'])}; binary fails by what it is: its P(tie) is 0.",
        f"4. The triangle still moves at the last checkpoint, less where the learning rate falls: {'; '.join(still)}.",
        f"5. With the fitted temperature the slope is {'; '.join(right)}; the ternary's at a temperature "
        f"{', '.join(off)}.",
    ]


def _stands(change: Estimate) -> str:
    if change.low is None or change.high is None:
        return "cannot tell"
    still = max(abs(change.low), abs(change.high)) <= STILL
    return "stands still" if still else "moves" if change.low > 0 or change.high < 0 else "cannot tell"


def _right(slope: Estimate) -> str:
    if slope.low is None or slope.high is None:
        return "cannot tell"
    right = max(abs(slope.low - 1), abs(slope.high - 1)) <= STEEP
    return "right" if right else "off" if slope.low > 1 + STEEP or slope.high < 1 - STEEP else "cannot tell"


def predictions(name: str, one: Trained, steps: Sequence[int], score_P: Floats) -> pa.Table:
    """Prediction rows of a training at some steps, calibrated on the pairs that are kept for it."""
    made = []
    for step in steps:
        said = one.said(step, "temperature")
        rows, two = len(said), said.target == "two-head"
        none = pa.nulls(rows, pa.float64())
        columns = {
            "model": [name] * rows,
            "target": [said.target] * rows,
            "step": np.full(rows, step, dtype=np.int64),
            "comparison_id": [digest("distilled-claims", p) for p in range(rows)],
            "query_id": [query_id(f"q{q}") for q in said.query_P],
            "score": score_P,
            "p_a": none if two else said.first_P,
            "p_b": none if two else said.second_P,
            "p_tie": none if two else np.zeros(rows) if said.target == "binary" else said.tie_P,
            "mean": said.mean_P if two else none,
            "decided": said.decided_P if two else none,
        }
        made.append(PREDICTION.table(columns))
    return pa.concat_tables(made)


def page(study: Study, out: Path) -> None:
    """The figures of seed 0: the ternary training, beside it the other targets and random labels."""
    first = {name: trained[0] for name, trained in study.trained.items()}
    score = first["ternary"].said(first["ternary"].best).score_P
    steps = {name: sorted(one.logits) if name == "ternary" else [one.best] for name, one in first.items()}
    names = ["binary", "ternary", "two-head", "random"]
    table = pa.concat_tables([predictions(name, first[name], steps[name], score) for name in names])
    write_page(table, "ternary", out, ["binary", "two-head"], random_labels="random", run="planted language")


def report(study: Study) -> str:
    """All tables and the sentences."""
    one = study.trained["ternary"][0]
    pairs, flat_, same, told = len(study.said("ternary")), flat(study), lines_of(study), ties(study)
    moved, slopes = moving(study), temperatures(study)
    head = (
        f"{len(study.trained['ternary'])} worlds, {one.size.train * one.size.per_query:,} pairs to learn from in each, "
        f"{one.last} steps; {pairs:,} held-out pairs of {study.said('ternary').queries:,} queries."
    )
    said = answers(flat_[1], same[1], told[1], moved[1], slopes[1])
    parts = [[head], learned(study), flat_[0], same[0], told[0], moved[0], slopes[0], said]
    return "\n\n".join("\n".join(part) for part in parts)


def main() -> None:
    """Train what is missing, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="folder of what trainings find, and of the page")
    parser.add_argument("--seeds", type=int, default=3, help="worlds, each with a training of every arm")
    given = parser.parse_args()
    size = Size()
    found = trainings(ARMS, given.seeds, size, Store(given.root), lambda text: print(text, file=sys.stderr, flush=True))
    study = Study.of(found, size)
    page(study, Path(given.root) / "page")
    print(report(study))


if __name__ == "__main__":
    main()
