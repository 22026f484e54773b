"""The main path, top to bottom: a collection goes in, a trained reranker and its report come out.

Each stage reads the artifacts of the stages it names and makes one of its own, in `anmi_ray/stages/<name>.py`. What
an artifact is called follows from what went into it (`fingerprints`), so running again computes only what is missing,
and runs, trials and studies share what they have in common. Where the panel holds a distilled judge, its making stands
before compare; where borderline documents are validated (`mine.allow`), a second round of questions, judgments and fits
stands between rate and mine (`stages_of`).
"""

from __future__ import annotations

import importlib
import logging
import re
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from anmi_ray import corpus
from anmi_ray.config.base import Settings, result_settings
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.judge import JudgeConfig
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError, DataError, StoreError
from anmi_ray.core.logs import Span
from anmi_ray.judging import kinds
from anmi_ray.models import loading
from anmi_ray.pipeline import progress
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.store import Artifact, Flow, Store, add_flows, fingerprint, runs
from anmi_ray.tables import formats
from anmi_ray.training import tracking

if TYPE_CHECKING:
    from anmi_ray.runtime.tasks import Context

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True)
class Stage:
    """One step of the main path. `version` rises whenever the same inputs and settings would give other rows.

    inputs: the roles whose artifacts it reads, each named as the stage that plays it, but for those in `played_by`;
    module: which of anmi_ray/stages carries it out, where that is not called as the stage is.
    """

    name: str
    version: int
    inputs: tuple[str, ...]
    does: str
    played_by: Mapping[str, str] = field(default_factory=dict[str, str])
    module: str = ""

    @property
    def body(self) -> str:
        """The module that carries it out; with `ingest` apart, its settings are the group of that name."""
        return self.module or self.name

    @property
    def reads(self) -> dict[str, str]:
        """By role, the stage whose artifact is read."""
        return {role: self.played_by.get(role, role) for role in self.inputs}


STAGES = (
    Stage("ingest", 2, (), "read the collection, refuse what is malformed, split the queries"),
    Stage(
        "retrieve",
        4,
        ("ingest",),
        "runs of held-out queries, each retriever and their fusion, candidates of train queries, texts",
    ),
    Stage("compare", 1, ("retrieve",), "choose which pairs of candidates to ask about: a sparse regular graph"),
    Stage(
        "judge",
        2,
        ("compare", "retrieve", "ingest"),
        "ask the judges which document of a pair answers better, both ways",
    ),
    Stage("rate", 3, ("judge", "compare", "retrieve"), "fit ratings, their errors, and gaps to the known positives"),
    Stage("mine", 2, ("rate", "retrieve"), "choose and weigh negatives by their gap"),
    Stage("train", 1, ("mine", "retrieve", "ingest"), "train the reranker with the hybrid loss, keep the best on dev"),
    Stage("rerank", 1, ("train", "retrieve", "ingest"), "score the hybrid's top documents of dev and test queries"),
    Stage("evaluate", 2, ("rerank", "retrieve", "ingest"), "measure every system on test, with intervals and tests"),
)
NAMES = tuple(stage.name for stage in STAGES)
_STAGE = {stage.name: stage for stage in STAGES}

# The second round: what is asked about borderline documents, its answers, and the fit of both rounds' answers.
_VALIDATION = (
    Stage(
        "borderline",
        1,
        ("rate", "compare", "retrieve"),
        "find borderline documents that were not compared with their anchor",
    ),
    replace(
        _STAGE["judge"],
        name="validate",
        inputs=(*_STAGE["judge"].inputs, "first"),
        does="ask the judges about borderline documents, each against its anchor",
        played_by={"compare": "borderline", "first": "compare"},
        module="judge",
    ),
    replace(
        _STAGE["rate"],
        name="refit",
        inputs=(*_STAGE["rate"].inputs, "validate", "borderline"),
        does="fit ratings and gaps again, to the judgments of both rounds",
        module="rate",
    ),
)
SECOND_ROUND = tuple(stage.name for stage in _VALIDATION)

# The making of a judge: pairs, what an ensemble says of them, and the model that learns from it.
_DISTILLATION = (
    Stage("sample", 1, ("retrieve",), "draw pairs of candidates, queries evenly and no document twice"),
    replace(
        _STAGE["judge"],
        name="label",
        does="ask the ensemble which document of a sampled pair answers better, both ways",
        played_by={"compare": "sample"},
        module="judge",
    ),
    Stage("distill", 1, ("sample", "label", "retrieve", "ingest"), "train a small judge on what the ensemble said"),
)
DISTILLATION = tuple(stage.name for stage in _DISTILLATION)

# Settings that count otherwise: where a collection lies (its content's hash is the ingest stage's input), and what
# other artifacts are made of.
_LEFT_OUT = {"ingest": {"path", "documents", "queries", "qrels"}, "distill": {"judge", "sample"}}
# By stage, the group of settings that is its own, where that is not called as its body is.
_GROUPS = {"ingest": "corpus", "borderline": "mine", "sample": "distill.sample", "label": "distill.judge"}
_MODELS: dict[str, Callable[[Experiment], str | None]] = {
    "retrieve": lambda e: e.retrieve.dense.model,
    "distill": lambda e: e.distill.model,
    "mine": lambda e: e.mine.pointwise,
    "train": lambda e: e.train.model,
}


def stages_of(experiment: Experiment) -> tuple[Stage, ...]:
    """The stages of an experiment, in order: STAGES, with a distillation and a second round where it has them.

    Judges read what is distilled where the panel holds it. Mine reads the judgments of all rounds where a rule needs
    them, and queries where one asks a model.
    """
    config, made = experiment.mine, _DISTILLATION if experiment.judge.distilled else ()
    rounds = ("judge", "compare", *(("validate", "borderline") if config.validation else ()))
    more = (*(rounds if config.needs_direct else ()), *(("ingest",) if config.pointwise else ()))
    mine = replace(_STAGE["mine"], inputs=(*_STAGE["mine"].inputs, *more))
    if config.validation:
        mine = replace(mine, played_by={"rate": "refit"})
    stages = _inserted(STAGES, made, _VALIDATION if config.validation else ())
    stages = tuple(mine if stage.name == "mine" else stage for stage in stages)
    if not made:
        return stages
    asking = ("judge", "validate")
    return tuple(replace(one, inputs=(*one.inputs, "distill")) if one.name in asking else one for one in stages)


def _inserted(path: tuple[_T, ...], distillation: tuple[_T, ...], second: tuple[_T, ...]) -> tuple[_T, ...]:
    """The main path with what stands before compare and before mine."""
    compare, mine = NAMES.index("compare"), NAMES.index("mine")
    return (*path[:compare], *distillation, *path[compare:mine], *second, *path[mine:])


def names_of(experiment: Experiment) -> tuple[str, ...]:
    """The names of an experiment's stages, in order."""
    return tuple(stage.name for stage in stages_of(experiment))


def recorded_names(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the stages of a run, by its record, those included that it did not reach."""
    config, reached = record["config"], record["stages"]
    rules = [rule["rule"] for rule in config["mine"].get("allow", ()) if isinstance(rule, dict)]
    kinds = [judge["kind"] for judge in config.get("judge", {}).get("judges", ())]
    second = "validate" in rules or any(name in reached for name in SECOND_ROUND)
    distilled = "distilled" in kinds or any(name in reached for name in DISTILLATION)
    return _inserted(NAMES, DISTILLATION if distilled else (), SECOND_ROUND if second else ())


@dataclass(frozen=True)
class Resolved:
    """A stage of one experiment: its settings that differ from the defaults, and its artifact's fingerprint."""

    stage: Stage
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]
    fingerprint: str


def resolve(experiment: Experiment, content: str | None = None) -> dict[str, Resolved]:
    """Every stage with its fingerprint, in order. Reads the collection's content hash, computes nothing else.

    `content` is that hash where it is known already: reading it takes seconds, and for many runs it need be read once.
    """
    resolved: dict[str, Resolved] = {}
    for stage in stages_of(experiment):
        settings = _settings(stage, experiment)
        inputs = {name: resolved[name].fingerprint for name in stage.reads.values()}
        if stage.name == "ingest":
            inputs = {"content": content or corpus.read(experiment.corpus).content_fingerprint()}
        if model := _MODELS.get(stage.name, lambda _: None)(experiment):
            inputs["model"] = loading.resolve(model).revision or "unpinned"
        if stage.name == "retrieve" and "late" in experiment.retrieve.retrievers:
            inputs["model of late"] = loading.resolve(experiment.retrieve.late.model).revision or "unpinned"
        if stage.name == "rerank":
            for peer in experiment.rerank.started(experiment.train).peers:
                if peer.run is not None:
                    inputs[f"{runs.TRAINED}{peer.name}"] = _trained(peer.run, experiment, resolved).fingerprint
                elif peer.model is not None:
                    revision = loading.resolve(peer.model, peer.trust_remote_code).revision
                    inputs |= {f"model of {peer.name}": revision}
        if isinstance(panel := _config(stage, experiment), JudgeConfig):  # a prompt's template stands in a file
            inputs |= kinds.fingerprint_inputs(panel)
        if stage.name == "compare" and experiment.compare.path is not None:
            inputs["file"] = formats.identity_of(Path(experiment.compare.path).expanduser())
        name = fingerprint(stage.name, stage.version, settings, [f"{k}={v}" for k, v in inputs.items()])
        resolved[stage.name] = Resolved(stage, settings, inputs, name)
    return resolved


def _trained(run: str, experiment: Experiment, resolved: Mapping[str, Resolved]) -> Artifact:
    """The model of another run, which is to be compared with this one's."""
    if run == experiment.name:
        raise ConfigError(
            f"run {run} is this run: its model is measured anyway", "rerank.peers", "name another run under the root"
        )
    return runs.trained(run, experiment.execution.root, resolved["ingest"].inputs["content"])


def group_of(stage: Stage) -> str:
    """The group of settings that is a stage's, a dotted name."""
    return _GROUPS.get(stage.name, stage.body)


def _config(stage: Stage, experiment: Experiment) -> Settings:
    """The settings of a stage. Which documents are borderline follows from few of mine's."""
    if stage.name == "rerank":
        return experiment.rerank.started(experiment.train)
    if stage.name == "evaluate":
        return experiment.evaluate.over(experiment.retrieve.retrievers)
    if stage.name == "borderline":
        return experiment.mine.asking
    return attrgetter(group_of(stage))(experiment)


def _settings(stage: Stage, experiment: Experiment) -> dict[str, Any]:
    left_out = _LEFT_OUT.get(stage.name, set())
    found = result_settings(_config(stage, experiment))
    settings = {name: value for name, value in found.items() if name not in left_out}
    if not experiment.seed:
        return settings
    return {**settings, "experiment.seed" if "seed" in settings else "seed": experiment.seed}


def run(
    experiment: Experiment,
    reporter: Reporter | None = None,
    first: str = NAMES[0],
    last: str = NAMES[-1],
    content: str | None = None,
) -> dict[str, Any]:
    """Carry out the stages from `first` to `last` and return the run's record (also at `runs/<name>.json`).

    The record says what the name stands for now: these settings, the stages that were carried out, and of the record
    before it every stage whose artifact is the same under these settings. So a shorter run of the same settings leaves
    the later stages known; with other settings those that would come out otherwise are no longer part of the run.
    Stages before `first` must be complete; `content` as in `resolve`. Raises AnmiError for whatever a user can mend.
    """
    store = Store(experiment.execution.root)
    resolved = resolve(experiment, content)
    record = _run_record(store, experiment, resolved)
    buckets = store.buckets(experiment.execution.buckets)
    names = tuple(resolved)
    chosen = names[names.index(first) : names.index(last) + 1]
    if _todo(store, resolved, tuple(name for name in ("distill", "train") if name in chosen)):
        tracking.check(experiment.execution.train.trackers)  # not only after hours of judging
    path = names[: names.index(last) + 1]
    with progress.told(store, experiment.name, path, reporter or Reporter()) as told, ExitStack() as session:
        ready = False
        for name in path:
            item = resolved[name]
            artifact = Artifact(store, name, item.fingerprint)
            manifest, seconds = artifact.manifest(), None
            if manifest is None and name not in chosen:
                raise StoreError(
                    f"--from {first} needs the artifact of stage {name}, which is not complete",
                    store.where(artifact.path),
                    f"run without --from, or with --from {name}",
                )
            if manifest is None:
                told.stage(name, item.stage.does)
                if not ready:
                    _start(session, experiment, partial(_todo, store, resolved, chosen), told)
                    ready = True
                manifest, seconds = _carry_out(item, resolved, artifact, experiment, buckets, told)
            flows = [Flow(**flow) for flow in manifest["flows"]]
            record["stages"][name] = {
                "fingerprint": item.fingerprint,
                "settings": dict(item.settings),
                "inputs": dict(item.inputs),
            }
            store.publish_json(f"runs/{experiment.name}.json", record)
            told.finished(name, seconds, flows)
            if name == "ingest":
                _check_splits(manifest["splits"], chosen)
    return record


def _check_splits(splits: Mapping[str, int], chosen: tuple[str, ...]) -> None:
    """Say before hours of work, not after, that there is nothing to train on or to measure."""
    needs = (
        ("train", "sample", "give qrels of a train split"),
        ("train", "compare", "give qrels of a train split"),
        ("test", "evaluate", "give qrels of a test split, or stop with --until rerank"),
    )
    for split, stage, remedy in needs:
        if stage in chosen and not splits.get(split):
            raise DataError(f"no {split} query is judged", f"stage {stage}", remedy)


def _todo(store: Store, resolved: Mapping[str, Resolved], chosen: tuple[str, ...]) -> list[str]:
    """The stages among `chosen` whose artifacts are not complete."""
    return [name for name in chosen if Artifact(store, name, resolved[name].fingerprint).manifest() is None]


def _start(session: ExitStack, experiment: Experiment, todo: Callable[[], list[str]], told: progress.Everyone) -> None:
    """Connect to Ray; on a cluster, see first that it can carry out what is to do."""
    runtime = importlib.import_module("anmi_ray.runtime.tasks")
    session.enter_context(runtime.ray_session(experiment.execution))
    told.add(importlib.import_module("anmi_ray.runtime.metrics").Meters(experiment.name, told.at_work))
    if experiment.execution.address is not None:
        importlib.import_module("anmi_ray.pipeline.preflight").check(experiment, todo(), told.notice)


def _carry_out(
    item: Resolved,
    resolved: Mapping[str, Resolved],
    artifact: Artifact,
    experiment: Experiment,
    buckets: int,
    reporter: Reporter,
) -> tuple[dict[str, Any], float]:
    """Run one stage and complete its artifact; its manifest, and the seconds it took."""
    runtime = importlib.import_module("anmi_ray.runtime.tasks")
    module = importlib.import_module(f"anmi_ray.stages.{item.stage.body}")
    context: Context = runtime.Context(
        artifact.store,
        experiment.execution,
        buckets,
        experiment.seed,
        reporter.progress,
        reporter.notice,
        reporter.measured,
        reporter.counted,
    )
    inputs = {
        role: Artifact(artifact.store, name, resolved[name].fingerprint) for role, name in item.stage.reads.items()
    }
    others = {role: name for role, name in item.inputs.items() if role.startswith(runs.TRAINED)}
    inputs |= {role: Artifact(artifact.store, "train", name) for role, name in others.items()}
    config = _config(item.stage, experiment)
    start = time.monotonic()
    with Span(_LOG, "stage", stage=item.stage.name) as span:
        facts: dict[str, Any] = module.run(artifact, inputs, config, context)
        span.told(rows=[asdict(flow) for flow in add_flows(facts["flows"])])
    seconds = time.monotonic() - start
    artifact.store.publish_json(
        f"timings/{item.stage.name}-{item.fingerprint}.json", {"seconds": seconds, **environment.hardware()}
    )
    manifest = artifact.complete(
        facts.pop("flows"),
        version=item.stage.version,
        settings=dict(item.settings),
        inputs=dict(item.inputs),
        **facts,
    )
    return manifest, seconds


def _run_record(store: Store, experiment: Experiment, resolved: Mapping[str, Resolved]) -> dict[str, Any]:
    """The run's record before its first stage: of the record that is there, the stages that are still the same.

    Raises ConfigError where the name belongs to a run over another corpus.
    """
    content = resolved["ingest"].inputs["content"]
    known = store.read_json(f"runs/{experiment.name}.json")
    if known is not None and known.get("corpus") != content:
        raise ConfigError(
            f"the name belongs to a run over another corpus ({known.get('corpus_name')})",
            f"run {experiment.name}",
            "give this run another name (name=…), or another root (--root)",
        )
    config = experiment.model_dump(mode="json", exclude={"execution"})
    before = (known or {}).get("stages", {})
    kept = {name: before[name] for name in resolved if _same(before.get(name), resolved[name])}
    return {
        "name": experiment.name,
        "corpus": content,
        "corpus_name": experiment.corpus.name,
        "config": config,
        "environment": environment.describe(),
        "stages": kept,
    }


def _same(recorded: Mapping[str, Any] | None, item: Resolved) -> bool:
    """Whether a stage of a run's record is the artifact that these settings give."""
    return recorded is not None and recorded["fingerprint"] == item.fingerprint


def stage_name(text: str, names: tuple[str, ...] = NAMES) -> str:
    """Check a stage's name given by a user. Raises ConfigError listing the stages."""
    if text in names:
        return text
    for there, hint in (
        (SECOND_ROUND, "it is there where borderline documents are validated: mine.allow begins with validate"),
        (DISTILLATION, "it is there where judge.judges holds {kind: distilled}; or see `anmi distill`"),
    ):
        if text in there:
            raise ConfigError(f"this run has no stage {text}", "command line", hint)
    near = [name for name in names if re.match(re.escape(text[:2]), name)]
    hint = f"did you mean {near[0]}?" if near else f"the stages are {', '.join(names)}"
    raise ConfigError(f"no stage is called '{text}'", "command line", hint)
