"""`anmi refine`: a run gone on with, round after round, each a run of its own that refines the one before."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from anmi_ray.config.evaluate import START
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import apply, validate_record
from anmi_ray.config.retrieve import USUAL
from anmi_ray.core.errors import ConfigError
from anmi_ray.evaluation.significance import SystemComparison
from anmi_ray.pipeline import run as main
from anmi_ray.pipeline.mining_runs import PLACE, settings_of
from anmi_ray.pipeline.resolve import Resolved, changes, resolve
from anmi_ray.pipeline.stages import (
    COMPARE,
    DISTILL,
    EVALUATE,
    FIRST,
    JUDGE,
    LABEL,
    LAST,
    MINE,
    RATE,
    REFIT,
    RERANK,
    RETRIEVE,
    SCORE,
    TRAIN,
)
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.stages import refine
from anmi_ray.stages.evaluate import START_FUSED
from anmi_ray.store import Artifact, Store, runs

MOST = 5  # rounds where nobody says how many
_FALLEN = 0.5  # of the first round's yield: the rest is not worth a round
# What the pairs, ratings and models of rounds have in common stays as it was.
_MAY_CHANGE = (JUDGE, DISTILL, RATE, MINE, TRAIN, RERANK, EVALUATE, "execution", "plan")
_SAMPLE = f"{DISTILL}.sample"


@dataclass(frozen=True)
class Refinement:
    """What a round asked and gained.

    pairs: asked about anew. answers: judgments of them, of all judges and orders. turned: pairs of which the better
    document became the other one. queries: that were compared. dev, test: the model against the one that it started
    from, None where nobody measured. dollars: what judges were paid for the pairs.
    """

    number: int
    run: str
    pairs: int
    answers: int
    turned: int
    queries: int
    dollars: float
    dev: SystemComparison | None
    test: SystemComparison | None

    @property
    def yields(self) -> float:
        """Turned pairs a query."""
        return self.turned / self.queries if self.queries else 0.0

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Refined:
    """All rounds, why there are no more, and the run whose model is the best by dev."""

    rounds: tuple[Refinement, ...]
    why: str
    best: str

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def of_run(name: str, root: str, overrides: Iterable[str]) -> Experiment:
    """The settings of the run `name` with `overrides`, under its own name: what rounds are made of.

    Raises ConfigError where there is no such run, it has no model, its judges cannot be asked, or an override changes
    what rounds share.
    """
    store, record = runs.find_run(name, root)
    place = store.where(f"runs/{name}.json")
    content = settings_of(record)
    content["execution"] = {"root": root}
    for override in overrides:
        apply(content, override)
        setting = override.partition("=")[0].strip()
        sampled = setting == DISTILL or f"{setting}.".startswith(f"{_SAMPLE}.")  # the whole group holds its sample too
        group = _SAMPLE if sampled else setting.partition(".")[0]
        if group not in _MAY_CHANGE:
            raise ConfigError(
                f"{group} is what all rounds share, and the run's stays as it was",
                PLACE,
                f"leave {override} out, or carry out a run with it: anmi run CONFIG; rounds may change "
                f"{', '.join(_MAY_CHANGE)}",
            )
    measured: dict[str, Any] = content[EVALUATE]
    if measured["partners"] == [*USUAL]:  # a record has every setting, and these follow from the retrievers
        del measured["partners"]
    measured["baseline"] = START_FUSED if measured["fusion"] else START
    experiment = validate_record({**content, "refines": name}, place)
    runs.trained(name, root, record["corpus"])
    return experiment


def round_of(experiment: Experiment, number: int) -> Experiment:
    """The settings of round `number` (1, 2, ...) over the run of `of_run`."""
    name = experiment.name
    before = name if number == 1 else f"{name}-refine-{number - 1}"
    return experiment.model_copy(update={"name": f"{name}-refine-{number}", "refines": before})


def next_of(experiment: Experiment) -> Experiment:
    """The first round that is not complete."""
    number = 1
    while True:
        found = round_of(experiment, number)
        if any(item.artifact(Store(found.execution.root)).manifest() is None for item in resolve(found).values()):
            return found
        number += 1


def carry_out(
    experiment: Experiment, wanted: int | None = None, reporter: Reporter | None = None
) -> Generator[Refinement, None, Refined]:
    """Yields every round as it is complete, and returns all of them.

    wanted: how many, whatever they yield; None: until a round's yield is less than half of the first one's or dev says
    that it gained nothing, MOST at most. A round that is complete is not carried out again. Raises AnmiError.
    """
    reporter = reporter or Reporter()
    content = runs.find_run(experiment.name, experiment.execution.root)[1]["corpus"]
    done: list[Refinement] = []
    why = f"{wanted or MOST} rounds"
    for number in range(1, (wanted or MOST) + 1):
        one = round_of(experiment, number)
        resolved = resolve(one, content)
        _say_changes(one, resolved, reporter)
        main.run(one, reporter, last=COMPARE, content=content)
        if not _flow(resolved[COMPARE].artifact(Store(one.execution.root)), refine.NEW):
            why = f"the model of {one.refines} contradicts nothing that was not asked already"
            break
        main.run(one, reporter, last=LAST, content=content)
        done.append(_told(one, number, resolved))
        yield done[-1]
        if wanted is None and (stop := enough(done)):
            why = stop
            break
    return Refined(tuple(done), why, best(experiment.name, done))


def enough(done: list[Refinement]) -> str:
    """Why no more rounds are wanted, "" where they are.

    The gain on dev decides whether the last round's model is gone on with; its interval is wide with few queries.
    """
    last = done[-1]
    if last.dev is not None and (last.dev.difference or 0.0) <= 0.0:
        return f"dev does not say that {last.run} is better than the model before"
    if not last.turned:
        return f"of none of the pairs of {last.run} the better document is another by what was answered"
    if last.yields < _FALLEN * done[0].yields:
        return f"round {last.number} turned {last.yields:.2f} pairs a query, the first {done[0].yields:.2f}"
    return ""


def best(name: str, done: list[Refinement]) -> str:
    """The run whose model is the best by dev, the gains of all rounds added up; the latest where nobody measured."""
    total = highest = 0.0
    found = name
    for one in done:
        total += 0.0 if one.dev is None else one.dev.difference or 0.0
        if total > highest or one.dev is None:
            found, highest = one.run, total
    return found


def _say_changes(experiment: Experiment, resolved: Mapping[str, Resolved], reporter: Reporter) -> None:
    """Name what makes a round another than the one of its name that is there."""
    known = (runs.recorded(Store(experiment.execution.root), experiment.name) or {"stages": {}})["stages"]
    for stage, _, why in changes(experiment, resolved):
        if stage in known and known[stage]["fingerprint"] != resolved[stage].fingerprint:
            because = f" ({why})" if why else ""
            reporter.notice(
                f"{experiment.name} is another than it was from {stage} on{because}; what it was is kept, answers are "
                "not asked for again"
            )
            return


def _told(experiment: Experiment, number: int, resolved: Mapping[str, Resolved]) -> Refinement:
    """What there is to say of a complete round."""
    store = Store(experiment.execution.root)
    made = {name: item.artifact(store) for name, item in resolved.items()}
    read = runs.of_other_runs(store, resolved[COMPARE].inputs) | {name: made[name] for name in (RETRIEVE, SCORE)}
    fitted = {**made, RATE: made.get(REFIT, made[RATE])}
    pairs, answers, turned = refine.came_of(read, fitted, range((made[FIRST].manifest() or {})["buckets"]))
    before = runs.find_run(str(experiment.refines), experiment.execution.root)[1]["stages"]
    paid = [
        dollars(made[name], Artifact(store, name, before[name]["fingerprint"]))
        for name in (LABEL, JUDGE)
        if name in made
    ]
    measured = (made[EVALUATE].manifest() or {})[refine.GAINS]
    dev, test = (None if measured[split] is None else SystemComparison(**measured[split]) for split in ("dev", "test"))
    return Refinement(
        number=number,
        run=experiment.name,
        pairs=pairs,
        answers=answers,
        turned=turned,
        queries=_flow(made[COMPARE], "queries"),
        dollars=sum(paid),
        dev=dev,
        test=test,
    )


def _flow(artifact: Artifact, unit: str) -> int:
    return sum(flow["rows_out"] for flow in (artifact.manifest() or {})["flows"] if flow["unit"] == unit)


def dollars(judged: Artifact, before: Artifact) -> float:
    """Dollars of a round: what its campaign had spent when it ended, less what it had when the run before ended."""
    now = judged.manifest() or {}
    earlier = before.manifest() or {}
    spent = sum(one["dollars"] for one in now.get("spent", {}).values())
    if now.get("campaign") != earlier.get("campaign", now.get("campaign")):  # other judges: a campaign of their own
        return spent
    return spent - sum(one["dollars"] for one in earlier.get("spent", {}).values())
