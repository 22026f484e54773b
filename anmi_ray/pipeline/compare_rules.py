"""compare-rules: every named composition of mining rules on the same ratings, and the page that holds them together.

Each rule's negatives are an ordinary artifact of mine, under a run `<name>-rules-<rule>`, so whatever is there already
is reused. The figures are of a hash sample of queries, computed in one task; page and rules.json stand under
`reports/<name>-rules/` and are made anew only when they would be made of other artifacts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from anmi_ray.config.experiment import Experiment
from anmi_ray.config.rules import NAMED
from anmi_ray.core import environment
from anmi_ray.core.errors import AnmiError, ConfigError, DataError, JudgeError
from anmi_ray.pipeline import mining_runs
from anmi_ray.pipeline import run as main
from anmi_ray.pipeline.progress import Everyone
from anmi_ray.pipeline.resolve import Resolved, resolve
from anmi_ray.pipeline.rule_figures import MinedRule, gather
from anmi_ray.pipeline.stages import FIRST, MINE, RATE
from anmi_ray.reports import rules
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.runtime.tasks import Context, ray_session, run_task
from anmi_ray.store import Artifact, Flow, Store
from anmi_ray.store.documents import with_checksum

VERSION = 2  # rises when the same artifacts would give other figures
_CANNOT = (ConfigError, DataError, JudgeError)  # what speaks against a rule; a full disk speaks against none


@dataclass(frozen=True)
class Compared:
    """Where the page stands, and rules.json's content."""

    path: str
    figures: Mapping[str, Any]


def run(experiment: Experiment, reporter: Reporter, rules: Sequence[str] | None = None) -> Compared:
    """Mine with each of `rules` (default: all that have a name) and write the page.

    Rules that cannot work with these settings are left out, and said to be. Raises AnmiError for whatever a user can
    mend; that of the first rule where none can work.
    """
    wanted = [mining_runs.rule_name(name) for name in dict.fromkeys(NAMED if rules is None else rules)]
    if not wanted:
        raise ConfigError("no rule is named", "--rules", f"known: {', '.join(NAMED)}")
    settings, errors = _settings(experiment, wanted, named=rules is not None)
    _check(settings, errors)
    first = next(iter(settings.values()))
    content = resolve(first)[FIRST].content
    with ExitStack() as session:
        if not all(_complete(one, content) for one in settings.values()):
            session.enter_context(ray_session(experiment.execution))
            main.run(first, reporter, last=RATE, content=content)
        mined = _mine(settings, errors, reporter, content)
        _check(mined, errors)
        made = resolve(settings[next(iter(mined))], content)
        left_out = {rule: error.message for rule, error in errors.items()}
        return _report(experiment, made, mined, left_out, reporter, session)


def _settings(
    experiment: Experiment, wanted: Sequence[str], named: bool
) -> tuple[dict[str, Experiment], dict[str, AnmiError]]:
    """The experiment under every rule that it can work with, and what speaks against the others."""
    settings: dict[str, Experiment] = {}
    errors: dict[str, AnmiError] = {}
    for rule in wanted:
        try:
            one = mining_runs.run_under(experiment, rule, f"{experiment.name}-rules-{rule}")
        except ConfigError as error:
            errors[rule] = error
            continue
        panel = experiment.judge
        if not named and one.mine.validation is not None and (panel.reading or panel.distilled):
            errors[rule] = ConfigError(
                "would ask the judges about further pairs; name it with --rules if they shall be asked", f"rule {rule}"
            )
            continue
        settings[rule] = one
    return settings, errors


def _check(left: Mapping[str, object], errors: Mapping[str, AnmiError]) -> None:
    if not left:
        raise next(iter(errors.values()))


def _complete(experiment: Experiment, content: str) -> bool:
    return resolve(experiment, content)[MINE].artifact(Store(experiment.execution.root)).manifest() is not None


class _UnderRule(Everyone):
    """Names the rule, and speaks of what is computed only: every rule passes by the same stages."""

    def __init__(self, reporter: Reporter, rule: str) -> None:
        super().__init__(reporter)
        self._rule = rule

    def stage(self, name: str, does: str) -> None:
        """A stage starts."""
        super().stage(f"{self._rule}: {name}", does)

    def finished(self, name: str, seconds: float | None, flows: list[Flow]) -> None:
        """A stage is complete; nothing is said of one that was."""
        if seconds is not None:
            super().finished(name, seconds, flows)


def _mine(
    settings: Mapping[str, Experiment], errors: dict[str, AnmiError], reporter: Reporter, content: str
) -> dict[str, MinedRule]:
    """The artifact of every rule; one that cannot work goes to `errors`."""
    mined: dict[str, MinedRule] = {}
    for rule, one in settings.items():
        try:
            artifact, item = mining_runs.carry_out(one, _UnderRule(reporter, rule), content)
        except _CANNOT as error:
            errors[rule] = error
            continue
        inputs = {role: Artifact(artifact.store, name, item.inputs[name]) for role, name in item.stage.reads.items()}
        mined[rule] = MinedRule(one.mine, artifact, inputs)
    return mined


def _report(
    experiment: Experiment,
    resolved: Mapping[str, Resolved],
    mined: Mapping[str, MinedRule],
    left_out: Mapping[str, str],
    reporter: Reporter,
    session: ExitStack,
) -> Compared:
    """The page and rules.json, computed unless they are there already and made of these artifacts."""
    store, folder = Store(experiment.execution.root), f"reports/{experiment.name}-rules"
    made_of = {
        "version": VERSION,
        "left_out": dict(left_out),
        **{rule: one.artifact.fingerprint for rule, one in mined.items()},
    }
    there = {"rules.json", "index.html"} <= set(store.names(folder))
    if not there or store.read_json(f"{folder}/made_of.json") != made_of:
        session.enter_context(ray_session(experiment.execution))
        reporter.stage("compare-rules", "hold the rules against each other")
        buckets = store.buckets(experiment.execution.buckets)
        context = Context(store, experiment.execution, buckets, experiment.seed, reporter.progress, reporter.notice)
        made = {name: item.artifact(store) for name, item in resolved.items()}
        data = run_task(context, gather, experiment, made, dict(mined), buckets)
        machine = environment.describe()
        known = {name: str(machine[name]) for name in ("git", "processor", "cores")}
        data = replace(data, left_out=left_out, environment=known)
        store.publish(f"{folder}/rules.json", with_checksum(rules.to_json(data)).encode())
        store.publish(f"{folder}/index.html", rules.to_html(data).encode())
        store.publish_json(f"{folder}/made_of.json", made_of)
    figures = store.read_json(f"{folder}/rules.json", "delete it and give the command again: it is made anew")
    return Compared(store.where(f"{folder}/index.html"), figures)
