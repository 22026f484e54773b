"""What real judges are worth: the audit of one in both orders, and thirty-three of them as an ensemble.

    python jobs/studies/judge_audits.py --both-orders dl2019_both_orders.csv --corpus corpus.jsonl --qrels test.tsv
    python jobs/studies/judge_audits.py --labels all_judges.csv --out DIR

--both-orders: year, round, qid, a, b and one LLM's two verdicts, each 1 for the document shown first, -1 for the other,
0 for none; --corpus and --qrels (BEIR layout) give the documents' lengths in characters and their grades. A pair asked
again in a later round counts again, and shows how far the judge repeats itself.

--labels: qid, docid, human, and a column of grades 0 to 3 per judge, named TEAM-variant; another grade is a failure.
Ensembles add up the judges' standardised grades, with weights that never saw the human ones. The one named before
anything was measured is `leave one team out`: a judge's weight is r / (1 - r²), the best weight of an indicator that
correlates by r with the truth, r being its correlation with the mean of the *other* teams (inside queries), divided by
its team's size. Dawid and Skene's EM, the usual choice, takes the judges' errors as independent given the truth, and
here they are not: a team's variants share model and prompt, vouch for each other, and would be trusted for it. It is
printed beside. The best single judge is picked by human grades, which is optimistic on the queries that picked it: so
it is picked on one half of them and measured on the other, both ways. A judge of four grades ties many documents, an
ensemble does not; `in four grades` takes that advantage away.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy import stats

from anmi_ray.audit_file import draw
from anmi_ray.evaluation import trec
from anmi_ray.evaluation.significance import bootstrap_interval, paired_randomisation
from anmi_ray.identity import digest, doc_id, query_id, rng
from anmi_ray.judging import audit, read_judgments
from anmi_ray.rating.graph import count_triads
from anmi_ray.records import QREL

Floats = NDArray[np.float64]
GRADES, PAIRS, SPLITS = 4, 200, 500
PRIMARY = "leave one team out"


# one judge, both orders


def verdicts(path: Path, corpus: Path | None) -> pa.Table:
    """Raw verdicts as rows of `anmi audit`, with the documents' lengths where there is a corpus."""
    length: dict[str, int] = {}
    if corpus is not None:
        with corpus.open(encoding="utf-8") as lines:
            length = {document["_id"]: len(document["text"]) for document in map(json.loads, lines)}
    rows: list[dict[str, object]] = []
    with path.open(encoding="utf-8") as file:
        for _, asked, query, a, b, first, second in list(csv.reader(file))[1:]:
            for order, verdict in (("ab", int(first)), ("ba", -int(second))):
                row: dict[str, object] = {
                    "query_id": query,
                    "doc_a": a,
                    "doc_b": b,
                    "round": int(asked),
                    "order": order,
                }
                row |= {
                    "preference": (verdict + 1) / 2 if verdict else None,
                    "error": None if verdict else "no verdict",
                }
                rows.append(row | {"length_a": length.get(a), "length_b": length.get(b)})
    return pa.Table.from_pylist(rows)


def one_judge(table: pa.Table, qrels: Path | None) -> None:
    """Print the audit of a judge, and how often it repeats itself."""
    read = read_judgments(table)
    grades = None if qrels is None else trec.read_qrels(qrels)
    found: Any = audit(read.judgments, read.comparisons, grades=grades, log_length=read.log_length, triads=count_triads)
    judge = found["judges"][""]
    bias, length = judge["position_bias"], judge["length_bias"]
    print(f"\nOne judge in both orders: {found['panel']['queries']} queries, {bias['pairs']:,} pairs in both orders, "
          f"{read.rejects.num_rows} rows rejected\n\n| figure | value | of |\n|---|---|---|")  # fmt: skip
    for name in ("failure_rate", "order_inconsistent_rate", "cycle_rate", "accuracy", "accuracy_both_orders"):
        if name in judge:
            print(f"| {name} | {percent(judge[name], judge['intervals'][name])} | {judge['counts'][name]:,} |")
    print(f"| position bias, above ½ | {percent(bias['probability'], bias['interval'])} | {bias['pairs']:,} |")
    print(f"| first : second of the inconsistent | {bias['first_preferred']} : {bias['second_preferred']} | |")
    print(f"| longer wins | {percent(length['longer'], length['interval'])} | {length['pairs']:,} |")
    if "slope" in length:
        low, high = length["slope_interval"]
        print(f"| log odds per unit of log length ratio | {length['slope']:.3f} [{low:.3f}, {high:.3f}] | |")
    if "equal_grades" in length:
        equal = length["equal_grades"]
        print(f"| longer wins, equal grades | {percent(equal['longer'], equal['interval'])} | {equal['pairs']:,} |")
    repeats(table)


def repeats(table: pa.Table) -> None:
    """Print how often the same prompt (documents, order) got the same verdict in a later round."""
    seen: dict[tuple[str, str, str], float] = {}
    same: list[bool] = []
    for row in table.sort_by([("round", "ascending")]).to_pylist():
        if row["preference"] is None:
            continue
        first = (row["doc_a"], row["doc_b"])[:: 1 if row["order"] == "ab" else -1]
        preferred = row["preference"] if row["order"] == "ab" else 1 - row["preference"]
        key = (row["query_id"], *first)
        if key in seen:
            same.append(seen[key] == preferred)
        seen[key] = preferred
    if same:
        print(f"\nThe same prompt again in a later round: {np.mean(same):.1%} of {len(same)} got the same verdict")


def percent(value: float | None, ends: list[float] | None) -> str:
    """A share with its interval, in percent."""
    if value is None:
        return "-"
    return f"{100 * value:.1f}" + ("" if ends is None else f" [{100 * ends[0]:.1f}, {100 * ends[1]:.1f}]")


# many judges, one grade each


@dataclass(frozen=True)
class Labels:
    """grades float[N, J], NaN where a judge failed; human int[N]; query int[N] in 0..Q-1; names of all."""

    judges: list[str]
    queries: list[str]
    documents: list[str]
    query: NDArray[np.int64]
    grades: Floats
    human: NDArray[np.int64]

    @property
    def teams(self) -> NDArray[np.str_]:
        """What stands before the first hyphen of a judge's name."""
        return np.array([name.split("-")[0] for name in self.judges])


def read_labels(path: Path) -> Labels:
    """The table of grades."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    judges = [name for name in rows[0] if name not in ("qid", "docid", "human")]
    grades = np.array([[float(row[judge]) for judge in judges] for row in rows])
    queries, query = np.unique([row["qid"] for row in rows], return_inverse=True)
    human = np.array([int(row["human"]) for row in rows])
    documents = [row["docid"] for row in rows]
    inside = (grades >= 0) & (grades < GRADES)
    return Labels(judges, queries.tolist(), documents, query, np.where(inside, grades, np.nan), human)


def as_preferences(labels: Labels) -> tuple[pa.Table, pa.Table]:
    """Answers of every judge to PAIRS random pairs a query, and the human grades as Qrel rows."""
    columns: dict[str, list[Any]] = {
        name: [] for name in ("query_id", "doc_a", "doc_b", "judge", "preference", "error")
    }
    for q, name in enumerate(labels.queries):
        rows = np.flatnonzero(labels.query == q)
        i, j = np.triu_indices(len(rows), 1)
        drawn = rng("pairs", name).permutation(len(i))[:PAIRS]
        a, b = rows[i[drawn]], rows[j[drawn]]
        for column, judge in enumerate(labels.judges):
            p = (np.sign(labels.grades[a, column] - labels.grades[b, column]) + 1) / 2
            columns["query_id"] += [name] * len(a)
            columns["doc_a"] += [labels.documents[row] for row in a]
            columns["doc_b"] += [labels.documents[row] for row in b]
            columns["judge"] += [judge] * len(a)
            columns["preference"] += [None if np.isnan(value) else value for value in p]
            columns["error"] += ["grade outside 0..3" if np.isnan(value) else None for value in p]
    ids = [query_id(labels.queries[q]) for q in labels.query], [doc_id(name) for name in labels.documents]
    qrels = QREL.table({"query_id": ids[0], "doc_id": ids[1], "grade": labels.human})
    return pa.table(columns), qrels


def standardised(labels: Labels) -> Floats:
    """Grades less the query's mean, in units of the judge's own spread inside queries; 0 where it failed."""
    centred = np.empty_like(labels.grades)
    for q in range(len(labels.queries)):
        rows = labels.query == q
        centred[rows] = labels.grades[rows] - np.nanmean(labels.grades[rows], axis=0)
    return np.nan_to_num(centred / np.nanstd(centred, axis=0))


def agreement_weights(labels: Labels) -> tuple[Floats, Floats]:
    """(weight[J], r[J]): r is the correlation with the mean of the other teams, each team one voice."""
    x, teams = standardised(labels), labels.teams
    names = np.unique(teams)
    voices = np.stack([x[:, teams == team].mean(axis=1) for team in names], axis=1)
    r = np.empty(len(teams))
    for j, team in enumerate(teams):
        r[j] = np.corrcoef(x[:, j], voices[:, names != team].mean(axis=1))[0, 1]
    r = np.clip(r, 0.0, 0.99)
    return r / (1 - r**2) / np.array([np.sum(teams == team) for team in teams]), r


def dawid_skene(labels: Labels, rounds: int = 500) -> Floats:
    """Expected grade[N] under Dawid and Skene (1979): a confusion matrix per judge, by EM from the votes' shares."""
    votes = np.stack([labels.grades == k for k in range(GRADES)], axis=2).astype(np.float64)  # [N, J, given]
    posterior = votes.sum(axis=1) / votes.sum(axis=(1, 2))[:, None]
    for _ in range(rounds):
        confusion = np.einsum("nt,njg->jtg", posterior, votes) + 0.5
        confusion /= confusion.sum(axis=2, keepdims=True)
        log = np.log(posterior.mean(axis=0) + 1e-12) + np.einsum("njg,jtg->nt", votes, np.log(confusion))
        new = np.exp(log - log.max(axis=1, keepdims=True))
        new /= new.sum(axis=1, keepdims=True)
        done = np.abs(new - posterior).max() < 1e-9
        posterior = new
        if done:
            break
    return posterior @ np.arange(GRADES)


def in_four_grades(score: Floats, labels: Labels) -> Floats:
    """The score cut into grades as often given as the judges give them on average."""
    shares = np.array([np.nanmean(labels.grades == k) for k in range(GRADES)])
    return np.searchsorted(np.quantile(score, np.cumsum(shares)[:-1]), score, side="right").astype(np.float64)


def ensembles(labels: Labels) -> dict[str, Floats]:
    """Scores[N] by name; none looks at the human grades."""
    x, teams = standardised(labels), labels.teams
    weights, _ = agreement_weights(labels)
    sizes = np.array([np.sum(teams == team) for team in teams])
    primary = x @ weights
    return {
        PRIMARY: primary,
        f"{PRIMARY}, in four grades": in_four_grades(primary, labels),
        "every team one voice": x @ (1 / sizes),
        "mean of all": x.mean(axis=1),
        "Dawid-Skene": dawid_skene(labels),
    }


# against human grades, per query


def tau(score: Floats, human: NDArray[np.int64]) -> float:
    """Kendall's τ-b; 0 for a judge that ties everything."""
    value = float(stats.kendalltau(score, human).statistic)  # type: ignore[union-attr]
    return 0.0 if np.isnan(value) else value


def pair_accuracy(score: Floats, human: NDArray[np.int64]) -> float:
    """Share of pairs of unlike human grades in their order, a tie counting half."""
    i, j = np.triu_indices(len(score), 1)
    truth = np.sign(human[i] - human[j])
    return float(np.mean((np.sign(score[i] - score[j]) * truth + 1)[truth != 0] / 2))


def ndcg(score: Floats, human: NDArray[np.int64], depth: int = 10) -> float:
    """nDCG@10, gain = grade, as expected when tied documents stand in random order (McSherry and Najork 2008)."""
    order = np.argsort(-score, kind="stable")
    _, group = np.unique(-score[order], return_inverse=True)
    gain = (np.bincount(group, human[order]) / np.bincount(group))[group]
    discount = 1 / np.log2(np.arange(2, depth + 2))
    return float(gain[:depth] @ discount[: len(gain)] / (np.sort(human)[::-1][:depth] @ discount[: len(human)]))


MEASURES: dict[str, Callable[[Floats, NDArray[np.int64]], float]] = {
    "Kendall τ-b": tau,
    "pair accuracy": pair_accuracy,
    "nDCG@10": ndcg,
}


def by_query(score: Floats, labels: Labels, measure: Callable[[Floats, NDArray[np.int64]], float]) -> Floats:
    """The measure of every query, [Q]; where a judge failed it stands with its lowest grade."""
    score = np.where(np.isnan(score), np.nanmin(score), score)
    rows = (labels.query == q for q in range(len(labels.queries)))
    return np.array([measure(score[row], labels.human[row]) for row in rows])


def picked(values: Floats, half: NDArray[np.bool_]) -> tuple[Floats, list[int]]:
    """values[J, Q] of the judge that is best on the other half of the queries, and which judge that was."""
    best = [int(np.argmax(values[:, ~side].mean(axis=1))) for side in (half, ~half)]
    return np.where(half, values[best[0]], values[best[1]]), best


def measured(labels: Labels) -> dict[str, Floats]:
    """Print ensembles against the best single judge; {measure: values[J, Q] of the judges}."""
    order = np.argsort([digest("half", name).hex() for name in labels.queries])
    half = np.zeros(len(labels.queries), np.bool_)
    half[order[::2]] = True
    scores, judges = ensembles(labels), {}
    for name, measure in MEASURES.items():
        values = np.array([by_query(column, labels, measure) for column in labels.grades.T])
        judges[name] = values
        single, best = picked(values, half)
        splits = np.array([np.isin(np.arange(len(half)), rng("split", k).permutation(len(half))[: len(half) // 2])
                           for k in range(SPLITS)])  # fmt: skip
        anywhere = np.mean([picked(values, split)[0] for split in splits], axis=0)
        hindsight = int(np.argmax(values.mean(axis=1)))
        print(f"\n{name} with human grades, mean over {len(half)} queries\n")
        print("| system | mean | less the single judge picked on the other half | p |\n|---|---|---|---|")
        halves = f"picked on the other half ({', '.join(labels.judges[j] for j in best)})"
        rows = {f"best single judge, {halves}": single, f"the same, mean of {SPLITS} splits": anywhere}
        rows |= {f"best single judge in hindsight ({labels.judges[hindsight]})": values[hindsight]}
        rows |= {"median judge": values[np.argsort(values.mean(axis=1))[len(values) // 2]]}
        rows |= {system: by_query(score, labels, measure) for system, score in scores.items()}
        for system, value in rows.items():
            low, high = bootstrap_interval(value)
            cells = f"{value.mean():.3f} [{low:.3f}, {high:.3f}]"
            if value is single:
                print(f"| {system} | {cells} | | |")
                continue
            low, high = bootstrap_interval(value - single)
            p = paired_randomisation(value, single)
            print(f"| {system} | {cells} | {np.mean(value - single):+.3f} [{low:+.3f}, {high:+.3f}] | {p:.4f} |")
    return judges


def many_judges(labels: Labels, out: Path) -> None:
    """Print the agreement of the judges, their weights, and the ensembles; draw the matrix."""
    table, qrels = as_preferences(labels)
    read = read_judgments(table)
    found: Any = audit(read.judgments, read.comparisons, grades=qrels)
    panel, pairs = found["panel"], found["panel"]["agreement_pairs"]
    print(f"\n{len(labels.judges)} judges of {len(set(labels.teams))} teams, {len(labels.documents):,} graded "
          f"documents, {panel['comparisons']:,} random pairs; Krippendorff's α {panel['alpha']:.3f} "
          f"{[round(end, 3) for end in panel['alpha_interval']]}")  # fmt: skip
    same = {key: len({name.split("-")[0] for name in key.split(" ~ ")}) == 1 for key in pairs}
    for inside, said in ((True, "of one team"), (False, "of two teams")):
        share = [one["share"] for key, one in pairs.items() if same[key] == inside]
        error = [value for key, value in panel["error_correlation"].items() if same[key] == inside]
        print(f"two judges {said}: decided alike {np.min(share):.1%} to {np.max(share):.1%}, "
              f"mean {np.mean(share):.1%}; correlation of their errors about the human grades, "
              f"mean {np.mean(error):.2f}")  # fmt: skip
    judges = measured(labels)
    weights, r = agreement_weights(labels)
    print("\n| judge | r, other teams | weight % | ties % | right % | τ-b |\n|---|---|---|---|---|---|")
    for j in np.argsort(-r):
        one = found["judges"][labels.judges[j]]
        right = percent(one["accuracy"], one["intervals"]["accuracy"])
        print(f"| {labels.judges[j]} | {r[j]:.3f} | {100 * weights[j] / weights.sum():.1f} "
              f"| {100 * one['tie_rate']:.0f} | {right} | {judges['Kendall τ-b'][j].mean():.3f} |")  # fmt: skip
    rank = stats.spearmanr(r, judges["Kendall τ-b"].mean(axis=1))[0]
    print(f"\nSpearman correlation over judges of r (no human grade) with τ-b against humans: {rank:.2f}")
    draw(found, out / "judges.html", "33 judges")
    print(f"-> {out / 'judges.html'}")


def main() -> None:
    """Print the tables, draw the matrix."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--both-orders", type=Path)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--qrels", type=Path)
    parser.add_argument("--labels", type=Path)
    parser.add_argument("--out", type=Path, default=Path("."))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.both_orders:
        one_judge(verdicts(given.both_orders, given.corpus), given.qrels)
    if given.labels:
        many_judges(read_labels(given.labels), given.out)


if __name__ == "__main__":
    main()
