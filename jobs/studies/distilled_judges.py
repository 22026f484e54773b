"""How good is a small judge distilled from real judges? Every form, held out by query, beside constants and cosines.

    python -m jobs.studies.distilled_judges [--gpt FOLDER --passages FOLDER] [--labels FOLDER]

--gpt: a folder with dl2019_judgments.csv (year,round,qid,winner,loser,kind), GPT-4o's preferences; rounds that asked in
both orders say of each pair whether the orders agreed (kind `win`) or not (`tie_broken_by_length`, a tie here; other
rounds do not say). --passages: its texts, in BEIR layout. --labels: llm_labels/all_judges.csv beside texts; a pair's
score is the mean over the judges of the sign of their grades' difference, ties a half.

Pairs are drawn as the product draws them: queries alike, no document in two pairs; here from pairs that have a
preference. `--pairs all` takes every pair that has one, with its documents in many. Queries are cut in folds by hash.
For each, a judge is trained on pairs of the other folds, some of whose queries choose its checkpoint (the start, the
middle, the end) and calibrate it, on pairs that share no document, and asked about its own. `similarity` is the
difference of the untrained start's cosines, sharpened on the folds that the judges learn from; `base rate` is their
mean score.

The start, and the bi-encoder's rate, are DistillConfig's; a cross-encoder has ten times that rate. Nothing is tuned.

To read: accuracy is that on clear pairs, where the judges agree. A slope of 1 is calibrated. Intervals are over
queries, given the trained judges: what another seed would do is not in them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from numpy.typing import NDArray

from anmi_ray.config.distill import DistillConfig
from anmi_ray.config.train import TrainExecution
from anmi_ray.core import identity
from anmi_ray.core.errors import ConfigError
from anmi_ray.corpus.beir import BeirFiles
from anmi_ray.evaluation.pairwise import Pairs
from anmi_ray.evaluation.pairwise_measures import Draws, Predictor, calibration, predictor
from anmi_ray.evaluation.significance import Estimate
from anmi_ray.judging import order_averaging
from anmi_ray.judging.calibration import fit_temperature
from anmi_ray.models.speed import torch_settings
from anmi_ray.stages.distill.worker import reader_of
from anmi_ray.store import Store
from anmi_ray.training.loop import carry_out
from anmi_ray.training.pair_inputs import Logits
from anmi_ray.training.preferences import HeldOut, PairSet, PreferenceTask, both_orders
from jobs.studies import harness
from jobs.studies.harness import Results, Table

STUDY = harness.study("distilled_judges", "Distilled real judges", __doc__ or "")
Reals = NDArray[np.float64]
Make = Callable[[pa.Table], PairSet]
Preference = tuple[str, str, str, float]  # query, document, another, 1 where the second is preferred
FORMS: dict[str, dict[str, Any]] = {
    "bi-encoder": {"form": "bi-encoder", "max_tokens": 128},
    "pointwise": {"form": "pointwise", "max_tokens": 128, "learning_rate": 2e-4},
    "pairwise, binary": {"form": "pairwise", "target": "binary", "max_tokens": 192, "learning_rate": 2e-4},
    "pairwise, ternary": {"form": "pairwise", "target": "ternary", "max_tokens": 192, "learning_rate": 2e-4},
}
SHARED: dict[str, Any] = {"dev_points": [0.0, 0.5, 1.0]}
HALF = "1/2"
RATE = "base rate"
SIMILARITY = "similarity"
TIE = "tie_broken_by_length"
TITLES = {"gpt": ("GPT-4o, TREC DL 2019", 1.0), "labels": ("33 LLM judges, TREC DL 2023", 0.5)}  # and what is clear
DEV_SHARE = 0.2
BUCKETS = 10


def gpt4o(folder: str) -> list[Preference]:
    """GPT-4o's preferences."""
    table = pacsv.read_csv(Path(folder) / "dl2019_judgments.csv")
    names = [table[name].cast(pa.string()).to_pylist() for name in ("qid", "winner", "loser")]
    score = pc.if_else(pc.equal(table["kind"], TIE), 0.5, 0.0).to_pylist()
    return list(zip(*names, score, strict=True))


def labelled(folder: str) -> list[Preference]:
    """All pairs of a query's documents under graded labels: the share of judges that grade the second higher."""
    table = pacsv.read_csv(Path(folder) / "llm_labels" / "all_judges.csv")
    judges = [name for name in table.column_names if name not in ("qid", "docid", "human")]
    query = np.array(table["qid"].to_pylist())
    doc = table["docid"].to_pylist()
    grade = np.stack([table[name].to_numpy().astype(float) for name in judges], axis=1)
    found: list[Preference] = []
    for name in sorted(set(query)):
        rows = np.flatnonzero(query == name)
        first, second = (rows[side] for side in np.triu_indices(len(rows), 1))
        score = 0.5 + 0.5 * np.sign(grade[second] - grade[first]).mean(axis=1)
        names = ([doc[row] for row in side.tolist()] for side in (first, second))
        found += zip([str(name)] * len(first), *names, score.tolist(), strict=True)
    return found


def pairs_of(preferences: Iterable[Preference]) -> pa.Table:
    """A row for each pair: comparison_id, query_id, doc_a < doc_b, and the mean score of its preferences."""
    query_ids = lru_cache(None)(identity.query_id)
    doc_ids = lru_cache(None)(identity.doc_id)
    found: dict[tuple[bytes, bytes, bytes], list[float]] = {}
    for query, first, second, score in preferences:
        a, b = doc_ids(first), doc_ids(second)
        if a != b:
            key, value = ((a, b), score) if a < b else ((b, a), 1.0 - score)
            found.setdefault((query_ids(query), *key), []).append(value)
    names = ("query_id", "doc_a", "doc_b")
    columns = {name: identity.id_array(key[at] for key in found) for at, name in enumerate(names)}
    score = [float(np.mean(values)) for values in found.values()]
    comparison = identity.id_array(identity.comparison_id(*key) for key in found)
    return pa.table({"comparison_id": comparison, **columns, "score": score})


def drawn(pairs: pa.Table, count: int, seed: int) -> pa.Table:
    """`count` of the pairs, or as many as there are: in turns each query gives its next pair in the order of a hash.

    Pairs with a document of another drawn pair are passed by. Sorted by comparison_id.
    """
    order = np.argsort(identity.uniforms(identity.id_matrix(pairs["comparison_id"]), "judged pairs", seed))
    query, a, b = (pairs[name].to_pylist() for name in ("query_id", "doc_a", "doc_b"))
    rows: dict[bytes, list[int]] = {}
    for row in order.tolist():
        rows.setdefault(query[row], []).append(row)
    waiting = {one: iter(rows[one]) for one in identity.hash_sample(list(rows), len(rows), "judged pairs", seed)}
    used: set[bytes] = set()
    taken: list[int] = []
    while waiting and len(taken) < count:
        for one in list(waiting)[: count - len(taken)]:
            row = next((row for row in waiting[one] if not {a[row], b[row]} & used), None)
            if row is None:
                del waiting[one]
                continue
            taken.append(row)
            used.update((a[row], b[row]))
    return pairs.take(pa.array(taken, pa.int64())).sort_by("comparison_id").combine_chunks()


@dataclass(frozen=True)
class Source:
    """Pairs with their `fold`, and the texts of all."""

    pairs: pa.Table
    texts: pa.Table
    queries: pa.Table
    left_out: int  # pairs with a preference and without a text

    def learned(self, fold: int, seed: int) -> tuple[pa.Table, pa.Table]:
        """(train, dev): the drawn pairs of the other folds, by query."""
        known = self.pairs.filter(pc.not_equal(self.pairs["fold"], fold))
        ids = known["query_id"].unique().to_pylist()
        chosen = identity.hash_sample(ids, max(round(DEV_SHARE * len(ids)), 1), "dev", seed, fold)
        is_dev = pc.is_in(known["query_id"], value_set=identity.id_array(chosen))
        return known.filter(pc.invert(is_dev)), drawn(known.filter(is_dev), len(known), seed)


@lru_cache(maxsize=1)
def source(name: str, folder: str, texts: str, count: int | None, folds: int, seed: int) -> Source:
    """`count` pairs of a source, or all (None), with their texts."""
    files = BeirFiles(texts)
    keys, titles, bodies = zip(*files.documents(), strict=True)
    documents = pa.table({"doc_id": identity.id_array(map(identity.doc_id, keys)), "title": titles, "text": bodies})
    keys, bodies = zip(*files.queries(), strict=True)
    asked = pa.table({"query_id": identity.id_array(map(identity.query_id, keys)), "text": bodies})
    every = pairs_of(gpt4o(folder) if name == "gpt" else labelled(folder))
    sides = [pc.is_in(every[name], value_set=documents["doc_id"].combine_chunks()) for name in ("doc_a", "doc_b")]
    known = every.filter(
        pc.and_(pc.and_(*sides), pc.is_in(every["query_id"], value_set=asked["query_id"].combine_chunks()))
    )
    table = known.sort_by("comparison_id").combine_chunks() if count is None else drawn(known, count, seed)
    ids = table["query_id"].unique().to_pylist()
    fold_of = {one: place % folds for place, one in enumerate(identity.hash_sample(ids, len(ids), "fold", seed))}
    table = table.append_column("fold", pa.array([fold_of[one] for one in table["query_id"].to_pylist()]))
    return Source(table, documents, asked, len(every) - len(known))


def work(task: Mapping[str, Any]) -> dict[str, Any]:
    """What a judge says of its fold's pairs: by comparison_id [P(first), P(second)], or the cosines' difference."""
    found = source(*task["source"])
    config = DistillConfig.model_validate(task["config"])
    begin = time.process_time()
    with torch_settings(1):
        model, made = reader_of(config, "cpu")

        def make(pairs: pa.Table) -> PairSet:
            return made(pairs, found.texts, found.queries)

        if task["fold"] is None:
            said = _logits(model, make(found.pairs), found.pairs, config)[::2, 1]
            return {"said": _by_pair(found.pairs, said[:, None]), "seconds": time.process_time() - begin}
        return _judge(model, make, found, task, config) | {"seconds": time.process_time() - begin}


def _judge(model: Any, make: Make, found: Source, task: Mapping[str, Any], config: DistillConfig) -> dict[str, Any]:
    """Train on the other folds, choose and calibrate on their dev pairs, predict."""
    train, dev = found.learned(task["fold"], task["source"][-1])
    target = config.target
    held = make(dev)

    def measure(step: int, logits_RL: Logits) -> float:
        return -order_averaging.fit(logits_RL, held.score_P, target, "temperature").loss

    execution = TrainExecution()
    preferences = partial(PreferenceTask, model, make(train), HeldOut(held, measure), config, execution)
    trained = carry_out(preferences, config, execution)
    fitted = order_averaging.fit(_logits(trained.model, held, dev, config), held.score_P, target, "temperature")
    asked = found.pairs.filter(pc.equal(found.pairs["fold"], task["fold"]))
    answer = order_averaging.averaged(fitted.sharpened(_logits(trained.model, make(asked), asked, config)), target)
    facts = {"steps": trained.steps, "best_step": trained.best_step, "beta": fitted.beta, "train": len(train)}
    return {"said": _by_pair(asked, np.stack([answer.first_P, answer.second_P], axis=1)), **facts}


def _logits(model: Any, pairs: PairSet, table: pa.Table, config: DistillConfig) -> Logits:
    """Logits float32[R, L] of both orders of the pairs of a table; a document that is scored alone is scored once."""
    scorer = model.scorer(config.precision)
    if not pairs.reader.single:
        return pairs.reader.infer(scorer, np.arange(2 * len(pairs)))
    query, a, b = (identity.id_matrix(table[name]) for name in ("query_id", "doc_a", "doc_b"))
    of_row = np.stack([np.hstack([query, a]), np.hstack([query, b])], axis=1).reshape(2 * len(table), -1)
    _, row_U, place_R = np.unique(of_row, axis=0, return_index=True, return_inverse=True)
    return both_orders(pairs.reader.infer(scorer, row_U)[place_R.reshape(-1), 0])


def _by_pair(pairs: pa.Table, values_PK: NDArray[Any]) -> dict[str, list[float]]:
    return {one.hex(): row for one, row in zip(pairs["comparison_id"].to_pylist(), values_PK.tolist(), strict=True)}


def predictions(name: str, found: Source, results: Mapping[str, Any], folds: int, seed: int) -> dict[str, Reals]:
    """(P(first), P(second)) float64[P, 2] of every pair by every predictor, constants and similarity included."""
    keys = [one.hex() for one in found.pairs["comparison_id"].to_pylist()]
    cosine = np.array([results[f"{name}-{SIMILARITY}"]["said"][key][0] for key in keys])
    fold_P = found.pairs["fold"].to_numpy()
    second = {HALF: np.full(len(keys), 0.5), RATE: np.zeros(len(keys)), SIMILARITY: np.zeros(len(keys))}
    of = dict(zip(keys, cosine.tolist(), strict=True))
    for fold in range(folds):
        known = pa.concat_tables(found.learned(fold, seed))
        score = known["score"].to_numpy()
        here = fold_P == fold
        second[RATE][here] = score.mean()
        known_cosine = np.array([of[one.hex()] for one in known["comparison_id"].to_pylist()])
        second[SIMILARITY][here] = fit_temperature(known_cosine, score)(cosine[here])
    said = {one: np.stack([1.0 - value, value], axis=1) for one, value in second.items()}
    for form in _forms(name, results):
        by_key: dict[str, list[float]] = {}
        for fold in range(folds):
            by_key |= results[f"{name}-{form}-{fold}"]["said"]
        said[form] = np.array([by_key[key] for key in keys])
    return said


def _forms(name: str, results: Mapping[str, Any]) -> list[str]:
    return [form for form in FORMS if f"{name}-{form}-0" in results]


def measured(pairs: pa.Table, said: Mapping[str, Reals]) -> dict[str, Pairs]:
    """The predictors' pairs, row by row the same."""
    query = np.unique(identity.id_matrix(pairs["query_id"]), axis=0, return_inverse=True)[1].reshape(-1)
    score = pairs["score"].to_numpy()
    return {name: Pairs(value[:, 0], value[:, 1], score, query) for name, value in said.items()}


def compared(pairs: Mapping[str, Pairs], one: str, other: str, clear: float = 1.0) -> Predictor:
    """`one` with its differences from `other`; accuracies are of clear pairs, |2C - 1| >= `clear`."""
    draws = Draws(pairs[one].queries)
    found = predictor(one, pairs[one], pairs[other], draws)
    if clear == 1.0:
        return found
    of_clear = predictor(one, _rounded(pairs[one], clear), _rounded(pairs[other], clear), draws)
    return replace(found, accuracy=of_clear.accuracy, accuracy_difference=of_clear.accuracy_difference)


def _rounded(pairs: Pairs, clear: float) -> Pairs:
    """Clear scores as consensus, the others as ties."""
    lean = 2.0 * pairs.score_P - 1.0
    return replace(pairs, score_P=0.5 + 0.5 * np.where(np.abs(lean) >= clear, np.sign(lean), 0.0))


def shown(found: Estimate | None, sign: str = "") -> str:
    """A mean with its interval."""
    if found is None or found.mean is None:
        return ""
    span = "" if found.low is None or found.high is None else f" [{found.low:{sign}.3f}, {found.high:{sign}.3f}]"
    return f"{found.mean:{sign}.3f}{span}"


def judges_table(title: str, pairs: Mapping[str, Pairs], clear: float) -> Table:
    """One row a predictor."""
    base = pairs[SIMILARITY]
    lean = np.abs(2.0 * base.score_P - 1.0)
    counts = f"{np.sum(lean >= clear):,} clear (|2C − 1| ≥ {clear:g}), {np.mean(lean == 0.0):.1%} ties"
    columns = ("judge", "accuracy on clear", "Brier", "ECE (by chance)", "rms", "slope")
    rows = []
    for name in pairs:
        one = compared(pairs, name, SIMILARITY, clear)
        curve = calibration(pairs[name], BUCKETS)
        slope = "" if name in (HALF, RATE) else shown(curve.slope)
        ece = f"{curve.ece:.3f} ({curve.ece_if_calibrated:.3f})"
        rows.append((name, shown(one.accuracy), shown(one.brier), ece, shown(curve.rms), slope))
    title = f"{title}, {len(base):,} pairs of {base.queries} queries, {counts}".replace("|", "\\|")
    return Table(title, columns, rows)


def differences_table(title: str, pairs: Mapping[str, Pairs], clear: float) -> Table:
    """Every judge beside constants, the start's cosines and the other forms."""
    rows = []
    for other in (HALF, SIMILARITY, "bi-encoder", "pairwise, binary"):
        for judge in (form for form in FORMS if {form, other} <= pairs.keys() and form != other):
            one = compared(pairs, judge, other, clear)
            rows.append((judge, other, shown(one.accuracy_difference, "+"), shown(one.brier_difference, "+")))
    return Table(f"{title}, differences", ("judge", "less", "accuracy on clear", "Brier score"), rows)


def tasks(name: str, key: Sequence[Any], given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The cosines, and a training for each form and fold."""
    shared = {"model": given.model, "freeze_layers": given.freeze_layers, "epochs": given.epochs, "seed": given.seed}
    shared |= SHARED
    found = {f"{name}-{SIMILARITY}": {"fold": None, "source": list(key), "config": shared | FORMS["bi-encoder"]}}
    for form in given.forms:
        for fold in range(given.folds):
            found[f"{name}-{form}-{fold}"] = {"fold": fold, "source": list(key), "config": shared | FORMS[form]}
    return found


def report(name: str, found: Source, said: Mapping[str, Reals], results: Mapping[str, Any]) -> Results:
    """A source's tables and answers."""
    title, clear = TITLES[name]
    pairs = measured(found.pairs, said)
    tables = [judges_table(title, pairs, clear), differences_table(title, pairs, clear)]
    rows = []
    for form in _forms(name, results):
        runs = [one for key, one in results.items() if key.startswith(f"{name}-{form}-")]
        columns = ("train", "steps", "best_step", "beta", "seconds")
        rows.append((form, *(" ".join(f"{run[column]:.4g}" for run in runs) for column in columns)))
    columns = ("judge", "pairs trained on", "steps", "best step", "sharpness", "core seconds")
    tables.append(Table(f"{title}, trainings, a value a fold", columns, rows))
    return Results(tables, [f"{title}: {found.left_out:,} pairs have a document or query without text."])


def _pairs(word: str) -> int | None:
    return None if word == "all" else int(word)


def main(words: Sequence[str] | None = None) -> None:
    """Train what is missing, print tables and answers."""
    parser = harness.parser(STUDY)
    parser.add_argument("--gpt", help="folder with dl2019_judgments.csv")
    parser.add_argument("--passages", help="folder with the texts of --gpt, in BEIR layout")
    parser.add_argument("--labels", help="folder with llm_labels/all_judges.csv and texts in BEIR layout")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS), help="those that are trained")
    parser.add_argument("--pairs", type=_pairs, default=860, help="pairs of all folds together, or all that there are")
    parser.add_argument("--folds", type=int, default=3, help="of queries")
    parser.add_argument("--epochs", type=float, default=2.0, help="passes over the pairs")
    parser.add_argument("--freeze-layers", type=int, default=3, help="lowest layers kept as they are")
    parser.add_argument("--model", default=DistillConfig().model, help="the start")
    parser.add_argument("--seed", type=int, default=0, help="of pairs, folds and trainings")
    given = parser.parse_args(words)

    def run() -> Results:
        if (given.gpt is None) != (given.passages is None) or not (given.gpt or given.labels):
            raise ConfigError(
                "no source is given whole", "--gpt", "give --gpt with --passages, or --labels, or all three"
            )
        if given.folds < 2:
            raise ConfigError("a judge is asked about queries that it did not learn from", "--folds", "give 2 or more")
        every = (("gpt", given.gpt, given.passages), ("labels", given.labels, given.labels))
        out = Store(str(Path(given.root) / "studies" / "distilled-judges"))
        reports = []
        for name, folder, texts in (one for one in every if one[1]):
            key = (name, folder, texts, given.pairs, given.folds, given.seed)
            results = harness.work_side_by_side(tasks(name, key, given), work, out, given.workers)
            found = source(*key)
            said = predictions(name, found, results, given.folds, given.seed)
            reports.append(report(name, found, said, results))
        return Results(
            [table for one in reports for table in one.tables], [note for one in reports for note in one.notes]
        )

    harness.carry_out(STUDY, given, run)


if __name__ == "__main__":
    main()
