"""Does a curriculum change anything here, does EXP3.S leave uniform, does a learned temperature move and matter?

    python -m jobs.studies.curricula [--seeds 3] [--dry-run]

Claims tested. The report: schedules from easy to hard (Table 3, Algorithm 3) train the better model. Graves et al.:
bands chosen by learning progress (EXP3.S, `progress`) do, so the bandit must come to prefer some band. CLIP: a
temperature is best learned. What is trained stands in curricula.yaml, and trainings.py trains and tests it.

How far the bandit leaves uniform is the total variation of its probabilities from 1/K, beside its largest value
(1 - ε)(1 - 1/K), ε the exploration. A reward means something only if the bands' rewards differ: the rewards of the run
are read back from its log, compared between bands by Kruskal and Wallis's test, and dealt anew at random to the same
bandit 500 times, which says how far it goes by chance.
Letters: T plays of a bandit, K bands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from anmi_ray.config.objective import CurriculumConfig
from anmi_ray.config.train import TrainConfig
from anmi_ray.core.identity import rng
from anmi_ray.store import Artifact, Store
from anmi_ray.training.bandit import Exp3S
from jobs.studies import harness, trainings
from jobs.studies.harness import Results, Table

Reals = NDArray[np.float64]
Log = Sequence[Mapping[str, Any]]
CONFIG = Path(__file__).with_suffix(".yaml")
DEALS = 500  # times that rewards are dealt anew


def variation(probability_TK: Reals) -> Reals:
    """Total variation from uniform, float64[T].

    >>> variation(np.array([[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0]])).tolist()
    [0.0, 0.75]
    """
    return np.abs(probability_TK - 1.0 / probability_TK.shape[1]).sum(1) / 2


def rewards(probability_TK: Reals, arm_T: NDArray[np.int64], exploration: float) -> Reals:
    """The scaled rewards in [-1, 1] that made a bandit's probabilities, float64[T]; row t of them is after play t.

    The inverse of `Exp3S.update`: its mixing is linear, and a reward moved the logarithm of one weight alone.
    """
    plays, arms = probability_TK.shape
    rate = math.sqrt(math.log(arms) / (arms * plays))
    before = np.full(arms, 1.0 / arms)
    found = np.zeros(plays)
    for t in range(plays):
        old, new = ((p - exploration / arms) / (1 - exploration) for p in (before, probability_TK[t]))
        share = 1.0 / (t + 2)
        # mixed = (1 - a) w + a/(K - 1) (Σ - w), which keeps the sum: 1
        if (kept := 1 - share - share / (arms - 1)) <= 0:  # two arms' first play: its reward, which is 0, is mixed away
            continue
        unmixed = (new - share / (arms - 1)) / kept
        moved = np.log(unmixed) - np.log(old)
        others = np.delete(moved, arm_T[t])
        found[t] = (moved[arm_T[t]] - others.mean()) * before[arm_T[t]] / rate
        before = probability_TK[t]
    return found


def dealt(reward_T: Reals, arms: int, exploration: float, rounds: int, seed: int) -> Reals:
    """Mean total variation of bandits that get these rewards in random order, whatever they play, float64[rounds]."""
    generator = rng("dealt", seed)
    return np.array([_played(generator.permutation(reward_T), arms, exploration, generator) for _ in range(rounds)])


def _played(reward_T: Reals, arms: int, exploration: float, generator: np.random.Generator) -> float:
    """Mean total variation over the plays of a bandit that gets `reward_T` one after the other."""
    bandit = Exp3S(arms, len(reward_T), exploration)
    seen = []
    for reward, uniform in zip(reward_T.tolist(), generator.random(len(reward_T)).tolist(), strict=True):
        bandit.update(bandit.draw(uniform), reward)
        seen.append(bandit.probabilities())
    return float(variation(np.array(seen)).mean())


def played(rows: Log) -> tuple[Reals, NDArray[np.int64]]:
    """A run's probabilities after every step, and the bands it played, told by their least gaps."""
    names = sorted((name for name in rows[0] if name.startswith("band_")), key=lambda name: int(name[5:]))
    probability_TK = np.array([[row[name] for name in names] for row in rows])
    least = [-math.inf if row["minimum_gap_elo"] is None else row["minimum_gap_elo"] for row in rows]
    edges = sorted(set(least))
    if len(edges) != len(names):
        raise AssertionError("a band was never played: bands cannot be told by their edges")
    return probability_TK, np.array([edges.index(one) for one in least])


def bandit_results(logs: Sequence[Log], exploration: float) -> tuple[Table, str]:
    """How far the bandits left uniform, and what their rewards were."""
    columns = ("seed", "at last", "variation: mean", "largest", "by chance, mean [5 %, 95 %]", "reward of each band",
               "bands alike: p")  # fmt: skip
    rows = []
    above = []
    arms = 0
    for seed, log in enumerate(logs):
        probability_TK, arm_T = played(log)
        arms = probability_TK.shape[1]
        distance = variation(probability_TK)
        reward_T = rewards(probability_TK, arm_T, exploration)
        chance = dealt(reward_T, arms, exploration, DEALS, seed)
        by_band = [reward_T[arm_T == k] for k in range(arms)]
        above.append(float((chance >= distance.mean()).mean()))
        low, high = np.quantile(chance, [0.05, 0.95])
        last = " ".join(f"{one:.2f}" for one in probability_TK[-1])
        means = " ".join(f"{one.mean():+.2f} ± {one.std(ddof=1) / math.sqrt(len(one)):.2f}" for one in by_band)
        by_chance = f"{chance.mean():.3f} [{low:.3f}, {high:.3f}]"
        p = f"{stats.kruskal(*by_band)[1]:.2f}"
        rows.append((str(seed), last, f"{distance.mean():.3f}", f"{distance.max():.3f}", by_chance, means, p))
    combined: Any = stats.combine_pvalues([max(one, 1 / DEALS) for one in above])
    shares = ", ".join(f"{one:.0%}" for one in above)
    note = (
        f"The largest possible variation is {(1 - exploration) * (1 - 1 / arms):.3f}. The bandits go as far by chance "
        f"in {shares} of the deals: p = {combined.pvalue:.2f}."
    )
    return Table("Probabilities of bands, small gaps first (`progress`)", columns, rows), note


def temperature_table(logs: Sequence[Log], start: float) -> Table:
    """Where learned temperatures go."""
    rows = []
    for seed, log in enumerate(logs):
        seen = [row["temperature"] for row in log]
        at = [start, *(seen[len(seen) * part // 4 - 1] for part in (1, 2, 4)), min(seen), max(seen)]
        rows.append((str(seed), *(f"{one:.4f}" for one in at)))
    return Table("The learned temperature", ("seed", "start", "a quarter", "half", "end", "least", "largest"), rows)


def main(words: Sequence[str] | None = None) -> None:
    """Train what is missing, print tables."""
    plan = harness.read_settings(trainings.Plan, CONFIG)
    study = trainings.study_of(plan)
    given = trainings.arguments(study).parse_args(words)

    def run() -> Results | None:
        of = trainings.prepare(plan, given)
        trainings.print_plan(of, given.workers)
        if given.dry_run:
            return None
        records = harness.run_side_by_side(list(of.experiments.values()), "rerank", given.workers)
        found = trainings.results(of, trainings.values_of(of, records))
        store = Store(given.root)

        def logs(variant: str) -> list[Log]:
            names = of.runs(of.collections[0], variant) if variant in of.variants else []
            marks = [records[name]["stages"]["train"]["fingerprint"] for name in names]
            return [Artifact(store, "train", mark).read_json("log.json") for mark in marks]

        tables = list(found.tables)
        notes = list(found.notes)
        if bandits := logs("progress"):
            table, said = bandit_results(bandits, CurriculumConfig().exploration)
            tables.append(table)
            notes.append(said)
        if learned := logs("temperature-learned"):
            tables.append(temperature_table(learned, TrainConfig().start_temperature))
        return replace(found, tables=tables, notes=notes)

    harness.carry_out(study, given, run)


if __name__ == "__main__":
    main()
