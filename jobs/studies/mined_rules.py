"""How often is a negative that a rule chose relevant, by what the rule did not know?

    python -m jobs.studies.mined_rules RUN [RUN ...] [--root results]

Counts the negatives of finished runs, such as those that `anmi mine RUN --rule NAME` makes; nothing is mined. A false
negative is a document whose true gap to its anchor is below `mine.false_negative_gap`. The truth is known if the run's
judges were simulated. A hidden positive is a document that the collection's labels call relevant and that
`rate.hide_positives` concealed from rating and mining.

To read: shares are percent of the rated negatives with a weight above 0, with 95 % intervals over queries. Where the
estimate is right, the interval of the estimated share holds the true one. Documents that nobody labelled may be
relevant too, so hidden positives are a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.cli.console import share
from anmi_ray.core import scale
from anmi_ray.core.arrays import Reals
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.identity import id_matrix
from anmi_ray.core.records import EXAMPLE, GAP, QREL, TRUTH, find_rows
from anmi_ray.evaluation.pairwise import wilson
from anmi_ray.store import Artifact, Store
from anmi_ray.store.runs import find_run
from jobs.studies import harness
from jobs.studies.harness import Results, Table

STUDY = harness.study("mined_rules", "Negatives of mining rules", __doc__ or "")
KEYS = ("query_id", "doc_id")


def chosen(examples: pa.Table) -> pa.Table:
    """The rated negatives with a weight above 0 in an Example table: query_id, anchor_id, doc_id."""
    lengths = pc.list_value_length(examples["doc_ids"]).to_numpy().astype(np.int64)
    owner = np.repeat(np.arange(examples.num_rows), lengths)
    first = np.cumsum(lengths) - lengths
    documents = pc.list_flatten(examples["doc_ids"])
    unrated = pc.is_in(pc.list_flatten(examples["categories"]), value_set=pa.array(["anchor", "random"]))
    rows = np.flatnonzero(~unrated.to_numpy() & (pc.list_flatten(examples["weights"]).to_numpy() > 0))
    return pa.table(
        {
            "query_id": examples["query_id"].take(pa.array(owner[rows])),
            "anchor_id": documents.take(pa.array(first[owner[rows]])),
            "doc_id": documents.take(pa.array(rows)),
        }
    )


def true_gaps(negatives: pa.Table, truth: pa.Table) -> Reals:
    """The latent relevance of anchor minus document in Elo points, NaN if not known. truth: a Truth table."""
    latent = np.append(truth["latent"].to_numpy().astype(np.float64), np.nan)  # row -1 is not there
    anchor, document = (
        latent[find_rows(truth, {"query_id": negatives["query_id"], "doc_id": negatives[name]})]
        for name in ("anchor_id", "doc_id")
    )
    return scale.to_elo(anchor - document, "thurstone")


def hidden_positives(qrels: pa.Table, gaps: pa.Table) -> pa.Table:
    """query_id, doc_id of rated documents that `qrels` call relevant (grade above 0) and that anchor no gap.

    Known positives anchor, so these were hidden from rating and mining.
    """
    relevant = qrels.filter(pc.greater(qrels["grade"], 0)).select(list(KEYS))
    anchors = gaps.select(["query_id", "anchor_id"]).group_by(["query_id", "anchor_id"]).aggregate([])
    rated = gaps.select(list(KEYS)).group_by(list(KEYS)).aggregate([])
    anchoring = find_rows(anchors.rename_columns(list(KEYS)), {key: relevant[key] for key in KEYS}) >= 0
    is_rated = find_rows(rated, {key: relevant[key] for key in KEYS}) >= 0
    return relevant.filter(pa.array(is_rated & ~anchoring))


def shares_of(store: Store, record: Mapping[str, Any]) -> dict[str, Any]:
    """Estimated and true shares of false negatives and of hidden positives among a run's negatives, None if unknown."""
    made = {stage: Artifact(store, stage, known["fingerprint"]) for stage, known in record["stages"].items()}
    if "mine" not in made:
        raise ConfigError(
            "the run has no negatives", record["name"], "carry it out with `anmi run CONFIG --until mine`"
        )
    buckets = range((made["ingest"].manifest() or {})["buckets"])
    summary = made["mine"].read_json("summary.json")
    negatives = pa.concat_tables([chosen(made["mine"].read_part("examples", b, EXAMPLE)) for b in buckets])
    hidden = pa.concat_tables(list(_hidden(made, buckets)))
    query = np.unique(id_matrix(negatives["query_id"]), axis=0, return_inverse=True)[1].reshape(-1)
    found: dict[str, Any] = {"true": None, "hidden": None}
    truth = _truth(made, buckets)
    if truth is not None:
        gap = true_gaps(negatives, truth)
        known = ~np.isnan(gap)
        false = gap[known] < summary["false_negative_gap_elo"]
        found["true"] = wilson(false.astype(np.float64), query[known])
    if hidden.num_rows:
        mined = find_rows(hidden, {key: negatives[key] for key in KEYS}) >= 0
        found["hidden"] = wilson(mined.astype(np.float64), query)
    return {**found, "estimated": summary["false_negative_rate_unweighted"], "negatives": negatives.num_rows}


def _hidden(made: Mapping[str, Artifact], buckets: range) -> Iterator[pa.Table]:
    rated = made.get("refit", made["rate"])
    for bucket in buckets:
        qrels = made["ingest"].read_part("qrels", bucket, QREL)
        yield hidden_positives(qrels, rated.read_part("gaps", bucket, GAP))


def _truth(made: Mapping[str, Artifact], buckets: range) -> pa.Table | None:
    """What the run's simulated judges, or those of its distilled judge, were told."""
    for stage in ("judge", "label"):
        if stage in made and made[stage].store.exists(made[stage].part_path("truth", 0)):
            return pa.concat_tables([made[stage].read_part("truth", bucket, TRUTH) for bucket in buckets])
    return None


def main(words: Sequence[str] | None = None) -> None:
    """Count the negatives of runs, print the table."""
    parser = harness.parser(STUDY)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="name of a run with mined negatives")
    given = parser.parse_args(words)

    def run() -> Results:
        found = {name: shares_of(*find_run(name, given.root)) for name in given.runs}
        rows = [
            (
                name,
                f"{one['negatives']:,}",
                share(one["estimated"]),
                *(share(None if one[key] is None else vars(one[key])) for key in ("true", "hidden")),
            )
            for name, one in found.items()
        ]
        columns = ("run", "negatives", "estimated false %", "truly false %", "hidden positives %")
        return Results([Table("Of the documents chosen as negatives", columns, rows)])

    harness.carry_out(STUDY, given, run)


if __name__ == "__main__":
    main()
