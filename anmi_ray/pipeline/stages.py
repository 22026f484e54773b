"""The path, top to bottom: a collection goes in, a trained reranker and its report come out.

Each stage reads the artifacts of the stages it names and makes one of its own; it describes itself in
`anmi_ray/stages`, beside what carries it out. A new stage is a module there and a line here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from anmi_ray.config.experiment import Experiment
from anmi_ray.core.errors import ConfigError
from anmi_ray.runtime.stage import Stage
from anmi_ray.stages import (
    anchor,
    borderline,
    compare,
    distill,
    elsewhere,
    evaluate,
    ingest,
    judge,
    mine,
    pool,
    rate,
    refine,
    report,
    rerank,
    retrieve,
    rounds,
    sample,
    shortlist,
    train,
)

# Where the panel holds a distilled judge: pairs, what an ensemble says of them, and the model that learns from it.
_DISTILLATION = (sample.STAGE, judge.LABEL, distill.STAGE)
# Where queries without a known positive are anchored: documents to ask about, what judges say of them, and which
# answer the query by all that is known.
_CONFIRMATION = (shortlist.STAGE, judge.CONFIRM, anchor.STAGE)
# Where borderline documents are validated: which, what judges say of them, and the fit of both rounds' answers.
_SECOND_ROUND = (borderline.STAGE, judge.VALIDATE, rate.REFIT)
# Where judges measure held-out queries: the systems' top documents, and what judges say of each.
_ASSESSMENT = (pool.STAGE, judge.ASSESS)


def _path(
    distillation: tuple[Stage, ...],
    confirmation: tuple[Stage, ...],
    second_round: tuple[Stage, ...],
    assessment: tuple[Stage, ...],
) -> tuple[Stage, ...]:
    return (
        ingest.STAGE,
        retrieve.STAGE,
        *distillation,
        compare.STAGE,
        judge.STAGE,
        rate.STAGE,
        *confirmation,
        *second_round,
        mine.STAGE,
        train.STAGE,
        rerank.STAGE,
        *assessment,
        evaluate.STAGE,
        report.STAGE,
    )


def _names(stages: tuple[Stage, ...]) -> tuple[str, ...]:
    return tuple(stage.name for stage in stages)


STAGES = _path((), (), (), ())
NAMES = _names(STAGES)
DISTILLATION = _names(_DISTILLATION)
CONFIRMATION = _names(_CONFIRMATION)
SECOND_ROUND = _names(_SECOND_ROUND)
ASSESSMENT = _names(_ASSESSMENT)
FIRST = NAMES[0]
LAST = NAMES[-1]
# Those whose artifacts other modules read, or up to which a command goes.
INGEST = ingest.STAGE.name
RETRIEVE = retrieve.STAGE.name
COMPARE = compare.STAGE.name
JUDGE = judge.STAGE.name
RATE = rate.STAGE.name
MINE = mine.STAGE.name
TRAIN = train.STAGE.name
RERANK = rerank.STAGE.name
EVALUATE = evaluate.STAGE.name
DISTILL = distill.STAGE.name


def stages_of(experiment: Experiment) -> tuple[Stage, ...]:
    """The stages of an experiment, in order, as they are in it; the last one, the report, reads all before it."""
    if experiment.trained_by is not None:
        path = elsewhere.only(_path((), (), (), ()))
        return tuple(stage.of(stage, experiment) for stage in path)
    made = _DISTILLATION if experiment.judge.distilled else ()
    confirmed = {"known": (), "confirmed": _CONFIRMATION, "rated": (anchor.STAGE,)}[experiment.mine.anchors]
    second = _SECOND_ROUND if experiment.mine.validation else ()
    assessed = _ASSESSMENT if experiment.assessors is not None else ()
    every = _path(made, confirmed, second, assessed)
    if experiment.in_rounds:
        every = rounds.spread(every, experiment.compare)
    if experiment.refines is not None:
        every = refine.spread(every)
    *path, last = (stage.of(stage, experiment) for stage in every)
    return (*path, replace(last, inputs=_names(tuple(path))))


def names_of(experiment: Experiment) -> tuple[str, ...]:
    """The names of an experiment's stages, in order."""
    return _names(stages_of(experiment))


def recorded_names(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the stages of a run, by its record, those included that it did not reach.

    A record from before runs listed their stages has those of the main path but the report, which was no stage then,
    and what was reached of the others.
    """
    if "path" in record:
        return tuple(record["path"])
    known = {*NAMES[:-1], *record["stages"]}
    every = _path(_DISTILLATION, _CONFIRMATION, _SECOND_ROUND, _ASSESSMENT)
    return tuple(name for name in _names(every) if name in known)


def stage_name(text: str, names: tuple[str, ...] = NAMES) -> str:
    """Check a stage's name given by a user. Raises ConfigError listing the stages."""
    if text in names:
        return text
    for there, hint in (
        (CONFIRMATION, "it is there where judges confirm anchors: mine.anchors: confirmed"),
        (SECOND_ROUND, "it is there where borderline documents are validated: mine.allow begins with validate"),
        (ASSESSMENT, "it is there where judges measure held-out queries: evaluate.judged"),
        (DISTILLATION, "add {kind: distilled} to judge.judges, as `anmi init --example quickstart-distilled` shows"),
    ):
        if text in there:
            raise ConfigError(f"this run has no stage {text}", "command line", hint)
    near = [name for name in names if re.match(re.escape(text[:2]), name)]
    hint = f"did you mean {near[0]}?" if near else f"the stages are {', '.join(names)}"
    raise ConfigError(f"no stage is called '{text}'", "command line", hint)
