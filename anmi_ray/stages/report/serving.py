"""Cost of reranking: time on the held-out queries, and size of the model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core.records import RUN
from anmi_ray.stages.rerank.held_out import timing_of
from anmi_ray.stages.rerank.ranking import SYSTEM
from anmi_ray.store import Artifact, Store

_WEIGHTS = ".safetensors"


def serving(rerank: Artifact, train: Artifact, buckets: Iterable[int], apart: bool) -> dict[str, Any]:
    """Figures of a complete run.

    apart: True if the model reads texts alone, so that a document is encoded once for all queries.
    seconds: for the top `depth` documents of `queries` queries, including process starts; None if interrupted.
    cores: None on a cluster or a GPU.
    documents: number of encoded documents; None unless `apart`.
    """
    manifest = rerank.manifest() or {}
    depth = int(manifest["depth"])
    timing = rerank.store.read_json(timing_of(rerank)) or {}
    parameters, size = model_size(train, "model")
    return {
        "depth": depth,
        "queries": next(flow["rows_out"] for flow in manifest["flows"] if flow["unit"] == "held-out queries"),
        "seconds": timing.get("seconds"),
        "cores": timing.get("cores"),
        "documents": _documents(rerank, buckets, depth) if apart else None,
        "parameters": parameters,
        "model_bytes": size,
    }


def model_size(artifact: Artifact, folder: str) -> tuple[int | None, int | None]:
    """Return the parameters of a sealed model and the bytes of its weights, from the headers of safetensors files.

    None without such files.
    """
    files = [name for name in artifact.read_json(f"{folder}.files.json") or () if name.endswith(_WEIGHTS)]
    if not files:
        return None, None
    found = [_of_file(artifact.store, f"{artifact.path}/{folder}/{name}") for name in files]
    return sum(parameters for parameters, _ in found), sum(size for _, size in found)


def _of_file(store: Store, path: str) -> tuple[int, int]:
    with store.open_input(path) as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        size = stream.size()
    return sum(math.prod(one["shape"]) for name, one in header.items() if name != "__metadata__"), size


def _documents(rerank: Artifact, buckets: Iterable[int], depth: int) -> int:
    """Return the number of distinct documents in the top `depth` of all queries."""
    found = [RUN.empty()["doc_id"].combine_chunks()]
    for bucket in buckets:
        runs = rerank.read_part("runs", bucket, RUN, columns=["doc_id", "system", "rank"])
        top = runs.filter(pc.and_(pc.equal(runs["system"], SYSTEM), pc.less_equal(runs["rank"], depth)))
        found.append(pc.unique(top["doc_id"]))
    return len(pc.unique(pa.concat_arrays(found)))
