"""Preferences of real language models, of the tracks that real_judges.py learns from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from anmi_ray.comparisons.graph import k_regular
from anmi_ray.core import identity
from anmi_ray.core.errors import ConfigError

PANEL = ("Olz-gpt4o", "h2oloo-zeroshot1", "willia-umbrela1")  # of 2023, from three groups
TIE = "tie_broken_by_length"  # both orders were asked, and the verdict changed
_GRADES = range(4)  # a grade off the scale is no answer
_DEGREE = 8
Preference = tuple[str, str, str, float, str]  # query, document, another, preference of the first, judge


def preferences_of(name: str, folder: Path, gpt: str | None) -> list[Preference]:
    """The preferences of a track's judges. Raises ConfigError where --gpt is missing."""
    if name == "dl2019":
        if gpt is None:
            raise ConfigError("GPT-4o's preferences are not given", "--gpt", "give the folder of dl2019_judgments.csv")
        return _averaged(gpt)
    table = pacsv.read_csv(folder / "llm_labels" / "all_judges.csv")
    query_N, doc_N = np.array(table["qid"].to_pylist()), np.array(table["docid"].to_pylist())
    found: list[Preference] = []
    for query in sorted(set(query_N.tolist())):
        rows = np.flatnonzero(query_N == query)
        for judge in PANEL:
            grade = table[judge].to_numpy()[rows]
            on_scale = np.isin(grade, _GRADES)
            grade, docs = grade[on_scale], doc_N[rows[on_scale]].tolist()
            for a, b in k_regular(len(docs), _DEGREE, identity.rng("real-judges", "pairs", query)).tolist():
                found.append((query, docs[a], docs[b], 0.5 + 0.5 * float(np.sign(grade[a] - grade[b])), judge))
    return found


def gpt4o(folder: str) -> list[tuple[str, str, str, float]]:
    """Read GPT-4o's preferences: query, winner, loser, and 0, or .5 for a tie."""
    table = pacsv.read_csv(Path(folder) / "dl2019_judgments.csv")
    names = [table[name].cast(pa.string()).to_pylist() for name in ("qid", "winner", "loser")]
    score = pc.if_else(pc.equal(table["kind"], TIE), 0.5, 0.0).to_pylist()
    return list(zip(*names, score, strict=True))


def _averaged(gpt: str) -> list[Preference]:
    """GPT-4o's, a pair that it was asked about several times once."""
    seen: dict[tuple[str, str, str], list[float]] = {}
    for query, winner, loser, score in gpt4o(gpt):
        first, second = sorted((winner, loser))
        seen.setdefault((query, first, second), []).append(score if first == loser else 1.0 - score)
    return [(*pair, sum(each) / len(each), "gpt-4o") for pair, each in seen.items()]


def shuffled(preferences: Sequence[Preference]) -> list[Preference]:
    """The same preferences, the documents of every query exchanged at random: who beats whom tells nothing of them."""
    of_query: dict[str, set[str]] = {}
    for query, first, second, *_ in preferences:
        of_query.setdefault(query, set()).update((first, second))
    other: dict[tuple[str, str], str] = {}
    for query, docs in of_query.items():
        names = sorted(docs)
        drawn = identity.rng("real-judges", "shuffled", query).permutation(len(names))
        other |= {(query, name): names[at] for name, at in zip(names, drawn, strict=True)}
    return [
        (query, other[query, first], other[query, second], preference, judge)
        for query, first, second, preference, judge in preferences
    ]
