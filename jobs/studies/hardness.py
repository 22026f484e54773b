"""How strong should a miner be: do harder negatives train the better model, until too many of them are false?

    python -m jobs.studies.hardness --data scifact=FOLDER --data cacm=FOLDER [--collections quickstart,scifact,cacm]

A miner is as strong as the ranks that it takes negatives from: four a query, drawn alike and of equal weight, from the
hybrid's ranks 1-5, 6-10, 11-20 or 21-40, or from documents that neither retriever has among its first hundred
(`random`). A query keeps one labelled positive, drawn by hash; its others are hidden, so false negatives among the
mined are counted by the true labels. No judge is heard: the rule is a window of ranks, the loss InfoNCE alone. CACM has
most hidden positives; it is cut in two, each half trained on for the other.
Students are a cross-encoder of the default settings and late interaction as in the study of students, which reads one
of the four a step, and the documents of the step's other queries beside it. Every training sees equally many lists
(`--lists`) on every collection: a part of the quickstart's, those of a half of CACM many times over. Ranked are the
hybrid's first 40 documents of a test query, the ranks that negatives come from. `untrained` is late interaction's
start; a cross-encoder's head starts by chance. `fused` is the mean of a model's score and of bm25+dense.

Claims, stated before anything was run. The report's Theorem 4 (section 4.3): performance rises with the miner's
intelligence up to an optimum and falls beyond it, for the share of false negatives rises (its Table 1). Robinson et al.
(2021) found that harder negatives do not always help where some share the anchor's class. Taken as strength by ranks:
(1) The hardest window, 1-5, is not the best: fails for a student and collection where its nDCG@10, alone, is above
that of each of the four others; holds where it is below that of one at least.
(2) Random documents are not the best: fails and holds likewise.
(3) The share of false negatives falls with the rank: fails for a collection where it rises from a window to the next,
random documents last; holds where it falls at each of the four steps.
Above, below, rises and falls mean p < .05 after Holm's correction, else a claim cannot be told. One family has all
differences of both students that (1) and (2) need, of each collection and of all; another those of (3). That the
hardest is above each other is above the best other: nothing is chosen on test. Fused differences decide no claim.

To read: a level is nDCG@10 over the same test queries, with its 95 % interval over queries; the second interval of a
difference is over queries and seeds, and so is the second verdict, on such trainings in general; two seeds tell little
there. The share of false negatives is a bound from below: only labelled documents are counted. Both students learn from
the same negatives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.core.errors import ConfigError
from anmi_ray.evaluation.pairwise_measures import wilson
from anmi_ray.evaluation.replicates import Contrast, contrast, family
from jobs.studies import harness
from jobs.studies.collected import by_collection
from jobs.studies.conditions import Condition, LabelFree, Plan, arguments, prepare, stages_of, trained
from jobs.studies.harness import Results, Table
from jobs.studies.label_free import levels_table, values_of
from jobs.studies.student_training import Material

STUDY = harness.study("hardness", "How strong a miner should be", __doc__ or "")
LIKE = "one-label"  # the condition of label_free.yaml that these vary
NEGATIVES = 4  # a list's: the first window holds no more beside the anchor
RANDOM = "random"
BEYOND = 100_000  # a window from here on lets nobody in, so that all negatives are random ones
RANKS: dict[str, tuple[int, int | None]] = {
    "1-5": (1, 5),
    "6-10": (6, 10),
    "11-20": (11, 20),
    "21-40": (21, 40),
    RANDOM: (BEYOND, None),
}
WINDOWS = tuple(RANKS)  # from the hardest on
HARDEST = WINDOWS[0]
DEPTH = 40
# alpha 1: InfoNCE alone, as late interaction's default is; a regression would need ratings, hence judges
STUDENTS: dict[str, dict[str, Any]] = {
    "cross-encoder": {"student": "cross-encoder", "lists_per_step": 8, "balance": {"alpha": 1.0}},
    "late-interaction": {"student": "late-interaction", "lists_per_step": 32},
}
LISTS = 640
LEVEL = 0.05
Kind = Literal["narrow", "wide"]
"""Of a test: narrow, over queries; wide, over queries and seeds."""
Key = tuple[str, str, str, str]
"""A difference's student, scope, window and the window that it is compared with."""
Flags = Mapping[bytes, Sequence[bool]]
"""By query, of each of its negatives whether it is labelled relevant."""
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class MinedLists:
    """What a window took in the parts of a collection."""

    train_queries: int
    lists: int
    flags: tuple[Flags, ...]  # by part

    def share_row(self) -> tuple[str, ...]:
        """Cells of the table: lists, negatives a list, the share that is false with its interval, queries with any."""
        by_query = [flags for part in self.flags for flags in part.values()]
        flag = np.concatenate([np.array(flags, dtype=np.float64) for flags in by_query])
        share = wilson(flag, np.repeat(np.arange(len(by_query)), [len(flags) for flags in by_query]))
        interval = "" if share.low is None or share.high is None else f" [{share.low:.1%}, {share.high:.1%}]"
        return (
            f"{self.train_queries:,}",
            f"{self.lists:,}",
            f"{len(flag) / self.lists:.2f}",
            f"{flag.mean():.1%}{interval}",
            f"{np.mean([any(flags) for flags in by_query]):.0%}",
        )


def condition_of(window: str, student: str) -> str:
    """The condition's name."""
    return f"negatives-{window}-{student}"


def settings_of(window: str) -> dict[str, Any]:
    """Settings of the experiment that mines a window."""
    first, last = RANKS[window]
    drawn = NEGATIVES if window == RANDOM else 0
    return {
        "retrieve": {"random_negatives": NEGATIVES},
        "mine": {
            "allow": [{"rule": "rank-window", "first": first, "last": last}],
            "weigh": "equal",
            "sample": "uniform",
            "negatives": NEGATIVES,
            "random_negatives": drawn,
            "rated_extra": 0,
        },
    }


def plan_of(config: Path, lists: int = LISTS) -> Plan:
    """The plan of the study without labels with a condition for every window and student. Raises ConfigError."""
    most = max(int(one["lists_per_step"]) for one in STUDENTS.values())
    if lists < most or lists % most:
        raise ConfigError(f"{lists} lists are no whole steps of {most}", "--lists", f"give a multiple of {most}")
    plan = harness.read_settings(Plan, config)
    like = plan.conditions[LIKE]
    conditions: dict[str, Condition] = {}
    for student, train in STUDENTS.items():
        steps = {"max_steps": lists // int(train["lists_per_step"])}
        for window in WINDOWS:
            settings = harness.merged([like.settings, settings_of(window)])
            own = {"settings": settings, "train": harness.merged([like.train, train, steps])}
            conditions[condition_of(window, student)] = like.model_copy(update=own)
    return plan.model_copy(update={"conditions": conditions, "depth": min(plan.depth, DEPTH)})


def false_flags(examples: pa.Table, relevant: set[tuple[bytes, bytes]]) -> dict[bytes, list[bool]]:
    """By query, of each of its negatives whether (query, document) is in `relevant`; a list's first is its anchor."""
    found: dict[bytes, list[bool]] = {}
    for query, documents in zip(examples["query_id"].to_pylist(), examples["doc_ids"].to_pylist(), strict=True):
        found.setdefault(query, []).extend((query, document) in relevant for document in documents[1:])
    return found


def mined(of: LabelFree) -> dict[tuple[str, str], MinedLists]:
    """By collection and window what was mined, which is the same for both students."""
    found: dict[tuple[str, str], MinedLists] = {}
    for collection, parts in by_collection(of.parts).items():
        for window in WINDOWS:
            condition = condition_of(window, next(iter(STUDENTS)))
            queries = lists = 0
            flags: list[Flags] = []
            for part in parts:
                truth = of.truth(part, condition)
                examples = Material(of.root, stages_of(part.experiment, of.experiment(part, condition))).examples
                queries += int(pc.sum(pc.equal(truth.queries["split"], "train")).as_py())
                lists += examples.num_rows
                flags.append(false_flags(examples, truth.relevant))
            found[collection, window] = MinedLists(queries, lists, tuple(flags))
    return found


def steps_of(
    taken: Mapping[tuple[str, str], MinedLists], collections: Sequence[str]
) -> dict[tuple[str, str], Contrast]:
    """By scope and window the share of false negatives less that of the window before it, queries paired, corrected."""
    rows: dict[tuple[str, str], Contrast] = {}
    for scope, within in harness.scopes_of(collections).items():
        for near, far in pairwise(WINDOWS):
            strata: list[Reals] = []
            for one in within:
                for before, after in zip(taken[one, near].flags, taken[one, far].flags, strict=True):
                    both = sorted(before.keys() & after.keys())
                    change = [float(np.mean(after[query]) - np.mean(before[query])) for query in both]
                    strata.append(np.array([change]))
            rows[scope, far] = contrast(f"{scope}: {far}", near, strata)
    return dict(zip(rows, family(list(rows.values())), strict=True))


def differences(values: Mapping[tuple[str, str], Reals], collections: Sequence[str]) -> dict[Key, Contrast]:
    """What claims 1 and 2 need: the hardest window less every other, and random documents less the rest, corrected."""
    pairs = [(HARDEST, other) for other in WINDOWS[1:]]
    pairs += [(RANDOM, other) for other in WINDOWS if other not in (HARDEST, RANDOM)]
    rows: dict[Key, Contrast] = {}
    for student in STUDENTS:
        for scope, within in harness.scopes_of(collections).items():
            for own, other in pairs:
                names = condition_of(own, student), condition_of(other, student)
                strata = [values[one, names[0]] - values[one, names[1]] for one in within]
                rows[student, scope, own, other] = contrast(f"{scope}: {own}", other, strata)
    return dict(zip(rows, family(list(rows.values())), strict=True))


def sign(row: Contrast, kind: Kind) -> int:
    """1: above, -1: below, 0: not told apart.

    >>> sign(Contrast("a", "b", 9, 2, -0.1, -0.2, 0.0, 0.01, 0.1, p_holm=0.04), "narrow")
    -1
    """
    p = row.p_holm if kind == "narrow" else row.wide_p_holm
    return 0 if p is None or p >= LEVEL else int(np.sign(row.difference))


def not_best(signs: Sequence[int]) -> str:
    """What becomes of the claim that something is not the best, by how it stands to each other.

    >>> not_best([1, 1]), not_best([1, -1]), not_best([1, 0])
    ('fails', 'holds', 'cannot tell')
    """
    if all(one > 0 for one in signs):
        return "fails"
    return "holds" if any(one < 0 for one in signs) else "cannot tell"


def falls(signs: Sequence[int]) -> str:
    """What becomes of the claim that something falls at every step, by the steps.

    >>> falls([-1, -1]), falls([-1, 1]), falls([-1, 0])
    ('holds', 'fails', 'cannot tell')
    """
    if any(one > 0 for one in signs):
        return "fails"
    return "holds" if all(one < 0 for one in signs) else "cannot tell"


def claims_table(
    rows: Mapping[Key, Contrast], steps: Mapping[tuple[str, str], Contrast], scopes: Sequence[str]
) -> Table:
    """The claims, by student and scope, for the models that were trained and for such trainings in general."""
    cells: list[tuple[str, ...]] = []
    for number, own in (("1", HARDEST), ("2", RANDOM)):
        for student in STUDENTS:
            for scope in scopes:
                verdicts = (not_best(_signs(rows, student, scope, own, kind)) for kind in ("narrow", "wide"))
                cells.append((f"({number}) {own} is not the best", student, scope, *verdicts))
    for scope in scopes:
        verdict = falls([sign(steps[scope, window], "narrow") for window in WINDOWS[1:]])
        cells.append(("(3) the share of false negatives falls", "", scope, verdict, ""))
    return Table("Claims", ("claim", "student", "scope", "these models", "over queries and seeds"), cells)


def _signs(rows: Mapping[Key, Contrast], student: str, scope: str, own: str, kind: Kind) -> list[int]:
    """How `own` stands to every other window; a difference stands in one direction only."""
    found: list[int] = []
    for other in WINDOWS:
        if (student, scope, own, other) in rows:
            found.append(sign(rows[student, scope, own, other], kind))
        elif other != own:
            found.append(-sign(rows[student, scope, other, own], kind))
    return found


def results(of: LabelFree, costs: Mapping[str, Any]) -> Results:
    """Claims, shares of false negatives, levels and differences."""
    values = values_of(of)
    collections = list(by_collection(of.parts))
    taken = mined(of)
    steps = steps_of(taken, collections)
    rows = differences(values.alone, collections)
    fused = differences(values.fused, collections)
    columns = ("collection", "negatives from", "train queries", "lists", "negatives a list",
               "of them labelled relevant", "queries with any")  # fmt: skip
    shares = [(one, window, *lists.share_row()) for (one, window), lists in taken.items()]
    tables = [
        claims_table(rows, steps, list(harness.scopes_of(collections))),
        Table("What was learned from", columns, shares),
    ]
    tables.append(harness.contrasts_table("Share of false negatives, less the harder window's", list(steps.values())))
    tables += [levels_table(of, values, one) for one in collections]
    for kind, every in (("alone", rows), ("fused", fused)):
        for student in STUDENTS:
            own = [row for key, row in every.items() if key[0] == student]
            tables.append(harness.contrasts_table(f"{student}, {kind}", own))
    levels = {f"{kind}: {one} {name}": level.mean(1).tolist()
              for kind, every in (("alone", values.alone), ("fused", values.fused))
              for (one, name), level in every.items()}  # fmt: skip
    figures = {
        "levels": levels,
        "alone": [{"student": key[0], **asdict(row)} for key, row in rows.items()],
        "fused": [{"student": key[0], **asdict(row)} for key, row in fused.items()],
        "shares": [asdict(row) for row in steps.values()],
        "costs": dict(costs),
    }
    return Results(tables, of.refused, figures)


def main(words: Sequence[str] | None = None) -> None:
    """Train what is missing, print the tables."""
    parser = arguments(STUDY, seeds=2)
    parser.add_argument("--lists", type=int, default=LISTS, help="lists that each training sees, a multiple of 32")
    parser.set_defaults(collections="quickstart,scifact,cacm")
    given = parser.parse_args(words)

    def run() -> Results:
        of, costs = trained(prepare(plan_of(given.config, given.lists), given), given.workers)
        return results(of, costs)

    harness.carry_out(STUDY, given, run)


if __name__ == "__main__":
    main()
