"""Do ratings by Thurstone's model or by Bradley and Terry's train the better model?

    python -m jobs.studies.rating_targets [--data scifact=FOLDER] [--collections quickstart,scifact] [--seeds 3]

`panel-80` is that condition of the study without labels: three simulated judges of 80 % compare and confirm, nothing is
labelled, ratings are Thurstone's. `panel-80-bradley-terry` differs in `rate.model` alone: the same answers are rated by
the logistic link, so gaps, anchors, negatives, their weights and the regression's targets come from these ratings. The
judges' errors are normal, as Thurstone's model has it, which favours his ratings where anything does.
Claim (the report, section 5.2.3): Thurstone's ratings suit retrieval better. It is refuted where the difference's
interval lies below 0, and not shown where it holds it.

To read: a level is nDCG@10 over the same test queries, with its 95 % interval over queries; the second interval of a
difference is over queries and seeds. Right: how many of the anchors that judges confirmed are labelled relevant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from anmi_ray.evaluation.replicates import contrast, family
from jobs.studies import harness
from jobs.studies.conditions import Plan, arguments, prepare, trained
from jobs.studies.harness import Results
from jobs.studies.label_free import levels_table, mined_counts, values_of

STUDY = harness.study("rating_targets", "Ratings as training targets", __doc__ or "")
THURSTONE, BRADLEY_TERRY = "panel-80", "panel-80-bradley-terry"


def plan_of(config: Path) -> Plan:
    """The plan of the study without labels, of whose conditions `panel-80` is left, rated by both models."""
    plan = harness.read_settings(Plan, config)
    like = plan.conditions[THURSTONE]
    settings = harness.merged([like.settings, {"rate": {"model": "bradley-terry"}}])
    conditions = {THURSTONE: like, BRADLEY_TERRY: like.model_copy(update={"settings": settings})}
    return plan.model_copy(update={"conditions": conditions})


def main(words: Sequence[str] | None = None) -> None:
    """Train what is missing, print the tables."""
    parser = arguments(STUDY, seeds=3)
    parser.set_defaults(collections="quickstart,scifact")
    given = parser.parse_args(words)

    def run() -> Results:
        of, costs = trained(prepare(plan_of(given.config), given), given.workers)
        values = values_of(of)
        collections = list(dict.fromkeys(part.collection for part in of.parts))
        rows = []
        for kind, every in (("alone", values.alone), ("fused", values.fused)):
            less = {one: every[one, THURSTONE] - every[one, BRADLEY_TERRY] for one in collections}
            rows += [contrast(f"{one}, {kind}: Thurstone", "Bradley-Terry", [less[one]]) for one in collections]
            rows += [contrast(f"all, {kind}: Thurstone", "Bradley-Terry", list(less.values()))] * (len(less) > 1)
        compared = family(rows)
        tables = [levels_table(of, values, one) for one in collections]
        tables += [harness.contrasts_table("Differences", compared), mined_counts(of)]
        return Results(tables, of.refused, {"differences": [asdict(one) for one in compared], "costs": dict(costs)})

    harness.carry_out(STUDY, given, run)


if __name__ == "__main__":
    main()
