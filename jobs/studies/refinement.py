"""What do rounds of refinement add to a model that was trained from judges' preferences alone?

    python -m jobs.studies.refinement [--data scifact=FOLDER] [--collections quickstart] [--seeds 3] [--rounds 2]

`judged` is the condition panel-80 of the study without labels (jobs/studies/label_free.yaml): the late-interaction
student, trained from what three simulated judges of 80 % say of at most 1,000 train queries, none of them labelled.
`refined-N` is round N of `anmi refine` over it: the same judges are asked about at most ten pairs of a query that the
model contradicts, all is rated and mined anew, and the model is trained on. `continued-N` has no new question: the
model is trained on N times from what it was trained from, by the same settings, which is what more training alone
gives. Every seed draws the order of the examples anew; judges answer as before. Nothing is chosen on dev or test: every
round is trained to its end, and measured. All rank the hybrid's top documents of the same test queries.

To read: a round helps where `refined-N` is above `judged`, and by its questions where it is above `continued-N`.
Turned: of a round's pairs those whose better document became the other one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from anmi_ray.cli.console import ConsoleReporter
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import validate
from anmi_ray.core import environment
from anmi_ray.core.records import RUN
from anmi_ray.evaluation import measures
from anmi_ray.evaluation.replicates import contrast, family
from anmi_ray.pipeline import refining, run
from anmi_ray.pipeline.refining import Refinement
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.pipeline.stages import MINE
from anmi_ray.runtime.tasks import ray_session
from anmi_ray.stages.rerank.ranking import SYSTEM
from anmi_ray.store import Artifact, Store, runs
from jobs.studies import conditions, harness
from jobs.studies.collected import Part, all_parts
from jobs.studies.conditions import LabelFree, stages_of
from jobs.studies.harness import Results, Table
from jobs.studies.label_free import MEASURE
from jobs.studies.student_training import Material

STUDY = harness.study("refinement", "Rounds of refinement", __doc__ or "")
JUDGED, REFINED, CONTINUED = "judged", "refined", "continued"
_LIKE = "panel-80"  # the condition of the study without labels
LAST = "rerank"
_TRAIN_QUERIES = 1000  # at most, as in the quickstart
_ROUNDS = 10_000
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Trained:
    """The run of every system of a part and seed, and what its rounds of refinement asked."""

    part: Part
    experiments: Mapping[str, Experiment]
    rounds: Sequence[Refinement]


def judged(of: LabelFree, part: Part, seed: int) -> Experiment:
    """The experiment whose model is refined."""
    one = of.plan.collections[part.collection]
    own = {
        "name": f"refinement-{part.name}-{seed}",
        "corpus": {"max_train_queries": _TRAIN_QUERIES},
        "train": {"max_tokens": one.max_tokens, "seed": seed, "engine": "ddp"},
        "rerank": {"depth": of.plan.depth},
        "execution": {"train": {"threads": environment.cores()}},
    }
    made = of.experiment(part, _LIKE).model_dump(exclude_unset=True)
    return validate(harness.merged([made, {"train": of.plan.train}, own]), "the study")


def carry_out(of: LabelFree, part: Part, seed: int, rounds: int) -> Trained:
    """Train all systems of a part with one seed; what is there is not made again."""
    reporter = ConsoleReporter(Console(stderr=True))
    first = judged(of, part, seed)
    run.run(first, reporter)
    found = {JUDGED: first}
    refined = refining.of_run(first.name, of.root, [])
    asked = list(refining.carry_out(refined, rounds, reporter))
    found |= {f"{REFINED}-{one.number}": refining.round_of(refined, one.number) for one in asked}
    model = first
    for number in range(1, len(asked) + 1):
        weights = runs.trained(model.name, of.root, None)
        folder = Path(of.root, weights.path, "model").resolve()
        own = {"name": f"{first.name}-{CONTINUED}-{number}", "train": {"model": str(folder)}}
        model = validate(harness.merged([first.model_dump(exclude_unset=True), own]), "the study")
        run.run(model, reporter, last=LAST)
        found[f"{CONTINUED}-{number}"] = model
    return Trained(part, found, asked)


def measured(of: LabelFree, part: Part, experiment: Experiment) -> Reals:
    """nDCG@10 of every test query, by id."""
    read, store, stages = Material(of.root, stages_of(part.experiment)), Store(of.root), resolve(experiment)
    first, last = (Artifact(store, name, stages[name].fingerprint) for name in ("ingest", LAST))
    every = all_parts(last, "runs", RUN, (first.manifest() or {})["buckets"])
    own = read.of_split(every.filter(np.asarray(every["system"]) == SYSTEM), "test")
    return measures.evaluate(own, read.of_split(read.qrels, "test"), [MEASURE])["value"].to_numpy()


def results(of: LabelFree, trained: Mapping[str, Sequence[Trained]]) -> Results:
    """Levels, differences of every system from `judged`, of rounds from as much training, and what rounds asked."""
    values = {name: _values(of, seeds) for name, seeds in trained.items()}
    names = list(dict.fromkeys(name for one in values.values() for name in one))
    scopes = {"all collections": list(values)} if len(values) > 1 else {}
    scopes |= {name: [name] for name in values}
    pairs = [(name, JUDGED) for name in names if name != JUDGED]
    pairs += [(name, other) for name in names if (other := name.replace(REFINED, CONTINUED)) != name]
    compared = [
        contrast(f"{scope}: {name}", other, [values[one][name] - values[one][other] for one in within], _ROUNDS)
        for scope, within in scopes.items()
        for name, other in pairs
    ]
    corrected = family(compared)
    tables = [_levels(name, one) for name, one in values.items()]
    tables += [harness.contrasts_table("Differences", corrected), _asked(of, trained)]
    levels = {f"{name} {system}": rows.mean(1).tolist() for name, one in values.items() for system, rows in one.items()}
    return Results(tables, (), {"levels": levels, "differences": [asdict(one) for one in corrected]})


def _values(of: LabelFree, seeds: Sequence[Trained]) -> dict[str, Reals]:
    """float64[S, Q] by system, of those that every seed has."""
    shared = [name for name in seeds[0].experiments if all(name in one.experiments for one in seeds)]
    return {name: np.stack([measured(of, one.part, one.experiments[name]) for one in seeds]) for name in shared}


def _levels(collection: str, values: Mapping[str, Reals]) -> Table:
    rows = [
        (name, harness.interval(contrast(name, "", [one])), " ".join(f"{value:.3f}" for value in one.mean(1)))
        for name, one in values.items()
    ]
    queries = next(iter(values.values())).shape[1]
    return Table(f"{collection}, {MEASURE}, {queries} test queries", ("system", "level", "by seed"), rows)


def _asked(of: LabelFree, trained: Mapping[str, Sequence[Trained]]) -> Table:
    """What rounds asked, and of how many train queries they mined, over the seeds."""
    rows = []
    for name, seeds in trained.items():
        for number in range(1, max(len(one.rounds) for one in seeds) + 1):
            reached = [one for one in seeds if len(one.rounds) >= number]
            pairs, answers, turned = (
                sum(getattr(one.rounds[number - 1], what) for one in reached) for what in ("pairs", "answers", "turned")
            )
            mean = len(reached)
            before, after = (
                sum(_mined(of, one.experiments[system]) for one in reached) / mean
                for system in (f"{REFINED}-{number - 1}" if number > 1 else JUDGED, f"{REFINED}-{number}")
            )
            cells = (f"{pairs / mean:,.0f}", f"{answers / mean:,.0f}", f"{turned / pairs:.1%}")
            rows.append((name, str(number), *cells, f"{before:,.0f}", f"{after:,.0f}"))
    columns = ("part", "round", "new pairs", "new answers", "turned", "train queries with negatives before", "after")
    return Table("What a round asked, mean over seeds", columns, rows)


def _mined(of: LabelFree, experiment: Experiment) -> int:
    """Train queries that have negatives."""
    made = Artifact(Store(of.root), MINE, resolve(experiment)[MINE].fingerprint)
    return sum(flow["rows_out"] for flow in (made.manifest() or {})["flows"] if flow["unit"] == "train queries")


def main(words: Sequence[str] | None = None) -> None:
    """Train what is missing, print the tables."""
    parser = conditions.arguments(STUDY, seeds=3)
    parser.add_argument("--rounds", type=int, default=2, help="rounds of refinement")
    given = parser.parse_args(words)

    def work() -> Results:
        plan = harness.read_settings(conditions.Plan, given.config)
        of = conditions.prepare(plan, given)
        harness.make([part.experiment for part in of.parts], "retrieve")  # where labels of test queries stand
        trained: dict[str, list[Trained]] = {}
        with ray_session(of.parts[0].experiment.execution):
            for seed in range(given.seeds):
                for part in of.parts:
                    trained.setdefault(part.name, []).append(carry_out(of, part, seed, given.rounds))
        return results(of, trained)

    harness.carry_out(STUDY, given, work)


if __name__ == "__main__":
    main()
