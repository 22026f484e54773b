"""A run that has been judged, written to a root directly: these tests need no pipeline."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np

from anmi_ray.core.identity import comparison_id, doc_id, query_id, rng, text_hash
from anmi_ray.core.records import COMPARISON, JUDGMENT, QUERY, TEXT_OF
from anmi_ray.store import Artifact, Store

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=alert(1)> &amp; \u202e ${1}"
ACCURACY = {"careful": 0.9, "coin": 0.5}  # of the judges, about the document with the larger number


def write_run(root: Path, queries: int = 12, documents: int = 6, name: str = "made", again: int = 0) -> Store:
    """Write run `name` over `queries` queries of `documents` documents, all pairs of which two judges answered.

    Document d5 of a query is better than d4, and so on: what is right is known. `again`: judged once more, with other
    chance; of the first query every pair but one is gone then.
    """
    store = Store(str(root))
    made = {stage: Artifact(store, stage, f"{stage}{again}") for stage in ("compare", "judge")}
    made |= {stage: Artifact(store, stage, f"{stage}0") for stage in ("ingest", "retrieve")}
    random = rng("made", again)
    for bucket in range(2):
        mine = [number for number in range(queries) if number % 2 == bucket]
        pairs = [
            (q, min(ends), max(ends))
            for q in mine
            for i, j in combinations(range(documents), 2)
            for ends in [(doc_id(f"q{q}d{i}"), doc_id(f"q{q}d{j}"))]
            if not (again and q == 0 and j != 1)
        ]
        _write_texts(made, bucket, mine, documents)
        _write_judgments(made, bucket, pairs, documents, random)
    made["judge"].publish_json("audit.json", {"queries": queries, "judges": {}, "panel": {}})
    for artifact in made.values():
        artifact.complete([], buckets=2)
    stages = {stage: {"fingerprint": artifact.fingerprint} for stage, artifact in made.items()}
    store.publish_json(f"runs/{name}.json", {"name": name, "corpus": "c", "config": {"seed": 0}, "stages": stages})
    return store


def _write_texts(made: dict[str, Artifact], bucket: int, mine: list[int], documents: int) -> None:
    texts = [f"which is best, {HOSTILE} {q}?" for q in mine]
    columns = {
        "query_id": [query_id(f"q{q}") for q in mine],
        "external_id": [f"q{q}" for q in mine],
        "text": texts,
        "text_hash": [text_hash(text) for text in texts],
        "split": ["train"] * len(mine),
    }
    made["ingest"].publish_part("queries", bucket, QUERY.table(columns), QUERY)
    names = [f"q{q}d{i}" for q in mine for i in range(documents)]
    columns = {
        "doc_id": [doc_id(name) for name in names],
        "external_id": names,
        "text_hash": [text_hash(name) for name in names],
        "title": [f"Title of quality {name[-1]}" for name in names],
        "text": [f"{HOSTILE}\nquality {name[-1]}" for name in names],
    }
    made["retrieve"].publish_part("texts", bucket, TEXT_OF.table(columns), TEXT_OF)


def _write_judgments(
    made: dict[str, Artifact],
    bucket: int,
    pairs: list[tuple[int, bytes, bytes]],
    documents: int,
    random: np.random.Generator,
) -> None:
    ids = [comparison_id(query_id(f"q{q}"), a, b) for q, a, b in pairs]
    queries = [query_id(f"q{q}") for q, _, _ in pairs]
    columns = {
        "comparison_id": ids,
        "query_id": queries,
        "doc_a": [a for _, a, _ in pairs],
        "doc_b": [b for _, _, b in pairs],
        "round": np.zeros(len(pairs), np.int32),
        "design": ["all"] * len(pairs),
    }
    made["compare"].publish_part("comparisons", bucket, COMPARISON.table(columns), COMPARISON)
    quality = {doc_id(f"q{q}d{i}"): i for q, _, _ in pairs for i in range(documents)}
    rows = []
    for (_, a, b), pair, query in zip(pairs, ids, queries, strict=True):
        for judge, accuracy in ACCURACY.items():
            for order in ("ab", "ba"):
                right = random.random() < accuracy
                rows.append((pair, query, judge, order, float((quality[a] > quality[b]) == right), None))
    table = JUDGMENT.table(dict(zip(JUDGMENT.schema.names, zip(*rows, strict=True), strict=True)))
    made["judge"].publish_part("judgments", bucket, table, JUDGMENT)
