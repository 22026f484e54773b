"""judge: comparisons -> preferences of every judge in both orders; failures stay failures.

validate does the same for the comparisons of the second round, label for the sample that a judge is distilled from; a
panel with that judge asks the distilled model. confirm asks about single documents, each compared with nothing: does it
answer the query? assess asks the same about the top documents of held-out queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from anmi_ray.config.experiment import Experiment
from anmi_ray.config.judge import JudgeConfig
from anmi_ray.config.needs import Need
from anmi_ray.core.errors import AnmiError, caught
from anmi_ray.runtime.costs import COMPARED, StageCost, Workload
from anmi_ray.runtime.stage import Inputs, Stage
from anmi_ray.runtime.tasks import Context
from anmi_ray.store import Artifact


def _body(name: str) -> Callable[..., dict[str, Any]]:
    """Return a function of `panel`, which is imported when the stage runs."""

    def run(artifact: Artifact, inputs: Inputs, config: JudgeConfig, context: Context) -> dict[str, Any]:
        from anmi_ray.stages.judge import panel

        return getattr(panel, name)(artifact, inputs, config, context)

    return run


run, confirm, assess = map(_body, ("run", "confirm", "assess"))


def _of(stage: Stage, experiment: Experiment) -> Stage:
    """Add the distilled model as an input if the panel has a distilled judge."""
    return replace(stage, inputs=(*stage.inputs, "distill")) if experiment.judge.distilled else stage


def _also(config: JudgeConfig, *_: Any) -> dict[str, str]:
    """Return the template files of prompts."""
    from anmi_ray.judging import kinds

    return kinds.fingerprint_inputs(config)


def _needs(stage: Stage, experiment: Experiment) -> Iterable[Need]:
    """Yield what each judge needs at least."""
    from anmi_ray.judging import kinds

    for index, judge in enumerate(stage.config_of(experiment).judges):
        need = kinds.of(judge).need(f"{stage.group}.judges.{index}", experiment.execution.judging_on)
        if need is not None:
            yield need


def _check(stage: Stage, experiment: Experiment) -> Iterator[AnmiError]:
    """Yield errors of missing packages; on a cluster the nodes are checked instead."""
    from anmi_ray.judging import kinds

    if experiment.execution.address is None:
        for judge in stage.config_of(experiment).judges:
            yield from caught(kinds.of(judge).check)


def _cost(load: Workload, config: JudgeConfig, orders: int) -> StageCost:
    """Return the cost of a round: judgments computed in process, and calls to language models by judge."""
    from anmi_ray.judging import kinds

    prompted = kinds.prompted(config)
    models = {judge.name: judge.model_inputs(load.experiment.distill) for judge in map(kinds.of, config.judges)}
    encoders = [(name, read.form, read.tokens) for name, read in models.items() if read is not None]
    calls = orders * load.pairs[COMPARED]
    here = len(config.judges) - len(prompted) - len(encoders)
    missing = {judge.name: calls for judge in prompted} | {cost.judge: cost.missing for cost in load.calls}
    both = ", both orders" if orders == 2 else ""
    work = [f"{calls * here:,} judgments by {here} in-process judges{both}"] if here else []
    work += [f"{count:,} calls to {name}" for name, count in missing.items()]
    for name, form, tokens in encoders:
        inputs = calls if form == "pairwise" else min(calls, load.candidates)
        work.append(f"{inputs:,} inputs to {name}, of at most {tokens:,} tokens each")
    return StageCost(
        work="; ".join(work),
        calls=sum(missing.values()),
        tokens=sum(cost.missing_tokens for cost in load.calls),
        dollars=sum(cost.dollars or 0.0 for cost in load.calls),
        gpu_hours=sum(cost.gpu_hours or 0.0 for cost in load.calls),
    )


STAGE = Stage(
    name="judge",
    version=2,
    inputs=(COMPARED, "retrieve", "ingest"),
    does="ask the judges which document of a pair answers better, both ways",
    run=run,
    cost=lambda load: _cost(load, load.config, 2 if load.config.orders == "both" else 1),
    settings="judge",
    of=_of,
    also=_also,
    asks=True,
    needs=_needs,
    check=_check,
)
VALIDATE = replace(
    STAGE,
    name="validate",
    inputs=(*STAGE.inputs, "first"),
    does="ask the judges about borderline documents, each against its anchor",
    played_by={COMPARED: "borderline", "first": "compare"},
)
CONFIRM = replace(
    STAGE,
    name="confirm",
    version=1,
    inputs=(*STAGE.inputs, "first"),
    does="ask the judges of the likeliest documents, one by one, whether they answer the query",
    run=confirm,
    cost=lambda load: _cost(load, load.config.direct, 1),
    also=lambda config, *_: _also(config.direct),
    played_by={COMPARED: "shortlist", "first": "compare"},
    direct=True,
)
ASSESS = replace(
    CONFIRM,
    name="assess",
    does="ask judges of the top documents of held-out queries, one by one, whether they answer the query",
    run=assess,
    of=lambda stage, experiment: (
        replace(stage, settings="evaluate.judge") if experiment.evaluate.judge else _of(stage, experiment)
    ),
    played_by={COMPARED: "pool", "first": "compare"},
)
LABEL = replace(
    STAGE,
    name="label",
    does="ask the ensemble which document of a sampled pair answers better, both ways",
    settings="distill.judge",
    played_by={COMPARED: "sample"},
    of=lambda stage, _: stage,
)
