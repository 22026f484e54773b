"""Does the interval of the share of false negatives hold the true share? Simulated data sets of 40 to 100 queries.

    python -m jobs.studies.negative_share [--sets 200]

Claim: `mining.false_negatives.share` holds the true share among the chosen (true gap below 100 points) in 93 to 97 % of
data sets, everything estimated from a data set's own games; for 4 or 8 comparisons a document, one or three judges, 7
or 15 negatives a query chosen by Table 2, by the gated posterior, or at random. It has to hold where positives are
drawn as the priors say. Where the positive is always the best document the priors expect too many false negatives;
where 3 unlabelled documents are like it, too few: the interval's allowance for that (SHARED) is put to the test there,
the latter with 100 queries or more, since a positive's own prior is fitted from 100 known positives on.
Prints a table: a cell's ± is 1.96 standard errors over data sets, `below` the share of truths under the interval.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import numpy as np

from anmi_ray import environment
from anmi_ray.config.mine import MineConfig
from anmi_ray.mining.false_negatives import share
from anmi_ray.mining.posterior import false_negative
from jobs.studies.negative_worlds import FALSE_GAP, World, in_order, mined

RULES = ("table2", "posterior", "uniform")
DRAWN = {None: "the best document", 0: "as its prior says", 3: "with 3 more like it"}
WORLDS = [World(k, judges, near) for near in (0, None, 3) for k in (4, 8) for judges in (1, 3)]


@dataclass(frozen=True)
class Covered:
    """What came of one rule in one world: truth, estimate and interval of every data set, float64[S, 4]."""

    rows: np.ndarray

    @property
    def inside(self) -> np.ndarray:
        """Data sets whose interval holds the truth, bool[S]."""
        true, _, low, high = self.rows.T
        return (low - 1e-12 <= true) & (true <= high + 1e-12)

    @property
    def below(self) -> float:
        """Share of the truths that lie under their interval."""
        return float((self.rows[:, 0] < self.rows[:, 2] - 1e-12).mean())


def covered(world: World, sets: int) -> dict[str, Covered]:
    """Every rule on the same data sets, of 40, 60, 80 and 100 queries in turn (60 more where documents are near)."""
    rows: dict[str, list[tuple[float, ...]]] = {rule: [] for rule in RULES}
    for number in range(sets):
        queries = 40 + 20 * (number % 4) + (60 if world.near else 0)
        data = mined(world, queries, 1000 + number, threads=environment.cores())
        for rule in RULES:
            config = MineConfig.model_validate({"rule": rule, "negatives": (7, 15)[number % 2]})
            taken = in_order(data, config, number)
            kept = taken.place < config.negatives
            row, weight = taken.row[kept], taken.weight[kept]
            p = false_negative(data.negatives.gap[row], data.negatives.gap_se[row], config)
            found = share(p, weight, data.negatives.example[row])
            true = float(weight @ (data.true_gap[row] < FALSE_GAP)) / float(weight.sum())
            rows[rule].append((true, *(float(found[name]) for name in ("mean", "low", "high"))))  # type: ignore[arg-type]
    return {rule: Covered(np.array(found)) for rule, found in rows.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=200, help="data sets a row")
    given = parser.parse_args()
    heads = ("positive", "k", "judges", "rule", "true, %", "estimated, %", "width, %", "holds the truth, %", "below, %")
    print("| " + " | ".join(heads) + " |")
    print("|---" * len(heads) + "|")
    for world in WORLDS:
        for rule, found in covered(world, given.sets).items():
            true, mean, low, high = 100 * found.rows.mean(axis=0)
            half = 196 * found.inside.std() / math.sqrt(given.sets)
            print(f"| {DRAWN[world.near]} | {world.degree} | {world.judges} | {rule} | {true:.2f} | {mean:.2f} "
                  f"| {high - low:.1f} | {100 * found.inside.mean():.1f} ± {half:.1f} | {100 * found.below:.1f} |",
                  flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
