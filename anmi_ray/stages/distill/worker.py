"""A worker of the distill stage: inputs, training, calibration, and the model's folder.

Legend: P pairs, R = 2P inputs, L labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch.distributed as dist

from anmi_ray.config.distill import DistillConfig
from anmi_ray.core.identity import id_matrix
from anmi_ray.judging import calibration
from anmi_ray.judging.kinds import distilled
from anmi_ray.judging.truncate import Truncator
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.classifier import PairClassifier, sharpen
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.reranker import Reranker
from anmi_ray.runtime.train_workers import RayCheckpoints, Report
from anmi_ray.stages.ingest import DEV, TRAIN
from anmi_ray.stages.rerank.ranking import document_texts
from anmi_ray.stages.train.trainer import Files, Job, positions
from anmi_ray.store import uri
from anmi_ray.training.loop import Trained, train_task
from anmi_ray.training.preferences import Apart, Logits, PairSet, PreferenceTask, both_orders

ENCODER_TEXTS = ("{query}", "{first} {sep} {second}")
DECODER_TEXTS = ("Query: {query}\nDocument A: {first}\nDocument B: {second}\nThe better document is", None)


@dataclass(frozen=True)
class PairSources:
    """Inputs: pairs with score and split, Text and Query files; and the output of held-out logits. All URIs."""

    pairs: str
    texts: list[str]
    queries: list[str]
    logits: str


def distill(job: Job, device: str, checkpoints: RayCheckpoints, report: Report) -> Trained:
    """Train on the train pairs, choose the checkpoint and calibrate on the dev pairs."""
    config, sources = cast(DistillConfig, job.config), cast(PairSources, job.sources)
    table = uri.read_table(sources.pairs)
    train = table.filter(pc.equal(table["split"], TRAIN))
    held = table.filter(pc.not_equal(table["split"], TRAIN))
    texts, queries = _texts(sources.texts, table), _queries(sources.queries, table)
    model, made = reader_of(config, device)
    data, others = (made(part, texts, queries) for part in (train, held))
    is_dev = np.repeat(pc.equal(held["split"], DEV).to_numpy(zero_copy_only=False), 2)
    score = others.score_P[is_dev[::2]]
    target = config.target

    def measure(step: int, logits_RL: Logits) -> float:
        _publish(sources.logits, step, logits_RL)
        return -calibration.fit(logits_RL[is_dev], score, target).loss

    task = partial(PreferenceTask, model, data, others, measure, config, job.execution)
    trained = train_task(task, config, job.execution, checkpoints, report, report.notice)
    said = others.reader.infer(trained.model.scorer(config.precision), np.flatnonzero(is_dev))
    logits = both_orders(said[:, 0]) if others.reader.single else said
    _calibrate(trained.model, calibration.fit(logits, score, target), config)
    return trained


def _calibrate(
    model: PairClassifier | CrossEncoder | BiEncoder, fitted: calibration.OrderCalibration, config: DistillConfig
) -> None:
    """Store the calibration in the weights, or in the file next to them; for cosines it is the judge's slope."""
    if isinstance(model, BiEncoder):
        return
    if isinstance(model, CrossEncoder):
        sharpen(model.network, fitted.beta, (0,))
        return
    sharpen(model.network, fitted.beta, fitted.columns)
    text, pair = texts_for(model)
    form = distilled.DistilledForm(config.target, text, pair, model.max_tokens)
    model.beside[distilled.FILE] = form.to_json()


Make = Callable[[pa.Table, pa.Table, pa.Table], PairSet]


def reader_of(config: DistillConfig, device: str) -> tuple[Any, Make]:
    """Return the start model and a function that makes a PairSet of tables of pairs, texts and queries.

    Columns: comparison_id, query_id, doc_a, doc_b and score; doc_id, title and text; query_id and text. Raises
    ConfigError if the model cannot be loaded.
    """
    if config.form != "pairwise":
        shared: dict[str, Any] = {
            "max_tokens": config.max_tokens,
            "seed": config.seed,
            "device": device,
            "trust_remote_code": config.trust_remote_code,
            "lora": config.lora,
        }
        kind = BiEncoder if config.form == "bi-encoder" else CrossEncoder
        scorer = kind.load(config.model, **shared)
        return scorer, partial(_single, scorer)
    model = PairClassifier.start(config, config.target, device)
    return model, partial(_together, model, Truncator(model, *texts_for(model)))


def texts_for(model: PairClassifier) -> tuple[str, str | None]:
    """The texts that query and documents are put into, as the model's tokenizer pairs texts."""
    return ENCODER_TEXTS if model.tokenizer.sep_token is not None else DECODER_TEXTS


def _together(
    model: PairClassifier, truncator: Truncator, pairs: pa.Table, texts: pa.Table, queries: pa.Table
) -> PairSet:
    """Inputs with the query and both documents, in both orders."""
    query, a, b = _shown(pairs, texts, queries)
    shown = [one for q, x, y in zip(query, a, b, strict=True) for one in ((q, x, y), (q, y, x))]
    reader = model.inputs(truncator.inputs(shown))
    return PairSet(id_matrix(pairs["comparison_id"]), pairs["score"].to_numpy(), reader)


def _single(scorer: Reranker, pairs: pa.Table, texts: pa.Table, queries: pa.Table) -> PairSet:
    """Inputs with the query and one document."""
    query, a, b = _shown(pairs, texts, queries)
    documents = [text for two in zip(a, b, strict=True) for text in two]
    query_R = np.repeat(np.arange(len(query)), 2)
    reader = Apart(scorer, scorer.pairs.of_queries(query), query_R, scorer.pairs.of_documents(documents))
    return PairSet(id_matrix(pairs["comparison_id"]), pairs["score"].to_numpy(), reader)


def _shown(pairs: pa.Table, texts: pa.Table, queries: pa.Table) -> tuple[list[str], list[str], list[str]]:
    """Return the texts of each pair's query and documents. Raises DataError if one is missing."""
    query, rows = positions(pairs["query_id"], queries["query_id"], "queries of pairs")
    asked = queries["text"].take(rows).to_pylist()
    sides: list[list[str]] = []
    for name in ("doc_a", "doc_b"):
        document, rows = positions(pairs[name], texts["doc_id"], "texts of pairs")
        read = document_texts(texts.take(rows))
        sides.append([read[at] for at in document.tolist()])
    return [asked[at] for at in query.tolist()], sides[0], sides[1]


def _texts(files: Sequence[str], pairs: pa.Table) -> pa.Table:
    """Texts of the pairs' documents, read one file at a time."""
    wanted = pc.unique(pa.chunked_array([*pairs["doc_a"].chunks, *pairs["doc_b"].chunks]))
    return pa.concat_tables([one.filter(pc.is_in(one["doc_id"], value_set=wanted)) for one in Files(files)])


def _queries(files: Sequence[str], pairs: pa.Table) -> pa.Table:
    wanted = pc.unique(pairs["query_id"])
    return pa.concat_tables([one.filter(pc.is_in(one["query_id"], value_set=wanted)) for one in Files(files)])


def _publish(folder: str, step: int, logits_RL: Logits) -> None:
    """Write the held-out logits of a dev point, on rank 0; a repeated point writes the same."""
    if dist.is_initialized() and dist.get_rank() != 0:
        return
    files, path = uri.filesystem(folder)
    files.create_dir(path, recursive=True)
    table = pa.table({str(label): logits_RL[:, label] for label in range(logits_RL.shape[1])})
    pq.write_table(table, f"{path}/step-{step:08d}.parquet", filesystem=files)
