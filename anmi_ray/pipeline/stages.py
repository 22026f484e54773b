"""The path, top to bottom: a collection goes in, a trained reranker and its report come out.

Each stage reads the artifacts of the stages it names and makes its own. A new stage is a module in `anmi_ray/stages`
that describes and runs it, and a line here, under the condition that enables it.
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
    compare,
    distill,
    elsewhere,
    evaluate,
    ingest,
    judge,
    mine,
    pool,
    pseudo,
    rate,
    report,
    rerank,
    retrieve,
    sample,
    train,
)

FIRST = ingest.STAGE.name
LAST = report.STAGE.name
# Stages whose artifacts other modules read, or up to which a command runs.
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
# Optional stages, and the settings that enable them.
_ENABLED_BY = (
    ((anchor.SHORTLIST, judge.CONFIRM, anchor.STAGE), "mine.anchors: confirmed"),
    ((mine.BORDERLINE, judge.VALIDATE, rate.REFIT), "mine.allow that begins with validate"),
    ((pool.STAGE, judge.ASSESS), "evaluate.judged: unlabelled or all"),
    ((sample.STAGE, judge.LABEL, distill.STAGE), "a judge {kind: distilled} in judge.judges"),
)


def stages_of(experiment: Experiment) -> tuple[Stage, ...]:
    """The stages of an experiment, in order; the last one, the report, reads all before it."""
    if experiment.trained_by is not None:
        path = [ingest.STAGE, retrieve.STAGE, elsewhere.RERANK, elsewhere.EVALUATE]
        return tuple(stage.of(stage, experiment) for stage in path)
    path = [ingest.STAGE, retrieve.STAGE]
    distilled, anchors = bool(experiment.judge.distilled), experiment.mine.anchors
    if anchors == "retrieved":
        path += [pseudo.STAGE]
    else:
        path += [sample.STAGE, judge.LABEL, distill.STAGE] if distilled else []
        in_one = (compare.STAGE, judge.STAGE, rate.STAGE)
        path += compare.rounds(experiment.compare) if experiment.compare.design == "adaptive" else in_one
    # anchors of queries without a known positive: documents to ask about, answers, and what follows from all evidence
    path += [anchor.SHORTLIST, _later(judge.CONFIRM, experiment)] if anchors == "confirmed" else []
    path += [anchor.STAGE] if anchors in ("confirmed", "rated") else []
    # validation of borderline documents: documents to ask about, answers, and a fit to the answers of both rounds
    path += [mine.BORDERLINE, _later(judge.VALIDATE, experiment), rate.REFIT] if experiment.mine.validation else []
    path += [mine.STAGE, train.STAGE, rerank.STAGE]
    # measurement by judges: the systems' top documents, and answers about each
    path += [pool.STAGE, _later(judge.ASSESS, experiment)] if experiment.assessors is not None else []
    path += [evaluate.STAGE]
    made = [stage.of(stage, experiment) for stage in path]
    return (*made, replace(report.STAGE, inputs=tuple(stage.name for stage in made)))


def _later(stage: Stage, experiment: Experiment) -> Stage:
    """A stage whose questions share the budget of the first round's questions."""
    if experiment.mine.anchors == "retrieved":  # there is no first round
        return replace(stage, inputs=tuple(role for role in stage.inputs if role != "first"))
    return replace(stage, played_by={**stage.played_by, "first": compare.first(COMPARE, experiment)})


def names_of(experiment: Experiment) -> tuple[str, ...]:
    """The names of an experiment's stages, in order."""
    return tuple(stage.name for stage in stages_of(experiment))


def recorded_names(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the stages of a run by its record, including those that it did not reach."""
    return tuple(record.get("path", record["stages"]))


def stage_name(text: str, names: tuple[str, ...]) -> str:
    """Check that a stage given by a user is among `names`. Raises ConfigError listing the stages."""
    if text in names:
        return text
    for stages, setting in _ENABLED_BY:
        if text in [stage.name for stage in stages]:
            raise ConfigError(f"this run has no stage {text}", "command line", f"enable it by {setting}")
    near = [name for name in names if re.match(re.escape(text[:2]), name)]
    hint = f"did you mean {near[0]}?" if near else f"the stages are {', '.join(names)}"
    raise ConfigError(f"no stage is called '{text}'", "command line", hint)
