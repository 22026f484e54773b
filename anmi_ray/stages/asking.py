"""Asking judges that read texts: plan what is missing, ask it, in chunks of whole queries; answers go to the log.

Nothing but the answer log says what was bought. A chunk's actor looks the log up before it asks, so a chunk that is
carried out again (an actor's death makes Ray repeat it, a killed run is started anew) asks only what never reached the
log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import ray.data

from anmi_ray import judging
from anmi_ray.answers import AnswerLog
from anmi_ray.config.judge import ApiJudgeConfig, JudgeConfig, TextJudgeConfig
from anmi_ray.errors import AnmiError, flatten, rebuild
from anmi_ray.judging.bought import judge_of
from anmi_ray.judging.protocol import Judge
from anmi_ray.judging.questions import TextQuestions, text_questions
from anmi_ray.records import COMPARISON, JUDGMENT, QUERY, TEXT_OF
from anmi_ray.stages.runtime import Context, our_errors, over_buckets
from anmi_ray.store import Artifact


@dataclass(frozen=True)
class Sources:
    """Where questions come from."""

    compare: Artifact
    retrieve: Artifact
    ingest: Artifact

    def questions(self, bucket: int) -> TextQuestions:
        """All questions of a bucket."""
        return text_questions(
            self.compare.read_part("comparisons", bucket, COMPARISON),
            self.ingest.read_part("queries", bucket, QUERY),
            self.retrieve.read_part("texts", bucket, TEXT_OF),
        )


def log_of(artifact: Artifact, config: TextJudgeConfig) -> AnswerLog:
    """The answers of a judge under the artifact's root."""
    return AnswerLog(artifact.store, judging.judge_id(config))


def ask(artifact: Artifact, sources: Sources, config: JudgeConfig, context: Context) -> dict[str, Any]:
    """Ask what is missing, judge by judge, then once more what failed for a passing reason; counts by judge.

    A bucket whose judgments are there already is left alone.
    """
    counts: dict[str, Any] = {}
    buckets = [bucket for bucket in range(context.buckets) if artifact.seal("judgments", JUDGMENT, bucket) is None]
    for judge in config.reading:
        total: dict[str, int] = {}
        for _ in range(1 + config.retry_passes):
            chunks = _plan(buckets, artifact, sources, judge, context)
            if not chunks:
                break
            found = _ask_chunks(chunks, artifact, sources, judge, context)
            for name, value in found.items():
                total[name] = total.get(name, 0) + value
            if not found["failed"]:  # nothing to ask again, so nothing to look for
                break
        counts[judge.name] = total
    return counts


def bought(artifact: Artifact, sources: Sources, config: JudgeConfig, bucket: int) -> Mapping[str, Judge]:
    """By name, the reading judges of the panel as what is in the log about a bucket."""
    if not config.reading:
        return {}
    questions = sources.questions(bucket)
    judges: dict[str, Judge] = {}
    for one in config.reading:
        held = log_of(artifact, one).read(bucket)
        judges[one.name] = judge_of(questions, held.table, held.rows(questions.ids), judging.readout(one))
    return judges


def _plan(
    buckets: list[int], artifact: Artifact, sources: Sources, judge: TextJudgeConfig, context: Context
) -> list[dict[str, int]]:
    """Chunks that hold questions without a final answer."""
    found = over_buckets(context, buckets, _missing, artifact, sources, judge, context.execution.chunk)
    return [chunk for chunks in found for chunk in chunks]


def _missing(
    bucket: int, artifact: Artifact, sources: Sources, judge: TextJudgeConfig, size: int
) -> list[dict[str, int]]:
    questions = sources.questions(bucket)
    final = log_of(artifact, judge).read(bucket).final(questions.ids)
    return [
        {"bucket": bucket, "start": start, "stop": stop, "missing": missing}
        for start, stop in questions.chunks(size)
        if (missing := int(np.sum(~final[start:stop])))
    ]


def _ask_chunks(
    chunks: list[dict[str, int]], artifact: Artifact, sources: Sources, judge: TextJudgeConfig, context: Context
) -> dict[str, int]:
    """Ask through a pool of actors; a chunk is a block. Returns sums of what the actors count."""
    actors = min(context.execution.askers or context.execution.cores, len(chunks))
    data = ray.data.DataContext.get_current().copy()
    data.enable_progress_bars = False
    data.execution_no_progress_timeout_s = context.execution.no_progress_s
    total = sum(chunk["missing"] for chunk in chunks)
    counts: dict[str, int] = {}
    with ray.data.DataContext.current(data), our_errors("judge"):
        asked = ray.data.from_items(chunks, override_num_blocks=len(chunks)).map_batches(
            cast(Any, _Asker),  # Ray's types know no actor whose call takes more than its batch
            fn_args=(artifact, sources, _share(judge, actors)),
            batch_size=1,
            batch_format="numpy",
            compute=ray.data.ActorPoolStrategy(size=actors),
            num_cpus=0.5,
        )
        for row in asked.iter_rows():
            if problem := row.pop("problem"):
                raise rebuild(problem)
            for name, value in row.items():
                counts[name] = counts.get(name, 0) + int(value)
            context.progress(counts["asked"], total, "questions")
    return counts


def _share(judge: TextJudgeConfig, actors: int) -> TextJudgeConfig:
    """The judge as one of several actors may ask it: together they keep its limits."""
    if not isinstance(judge, ApiJudgeConfig):
        return judge
    endpoint = judge.endpoint
    limits = {
        name: None if (limit := getattr(endpoint, name)) is None else limit / actors
        for name in ("requests_per_minute", "tokens_per_minute")
    }
    shared = endpoint.model_copy(update={**limits, "concurrency": max(1, endpoint.concurrency // actors)})
    return judge.model_copy(update={"endpoint": shared})


class _Asker:
    """Holds a judge's engine; a call asks what a chunk still lacks and publishes every batch of answers at once."""

    def __init__(self) -> None:
        self.engine: judging.Engine | None = None
        self.problem = ""

    def __call__(
        self, batch: dict[str, Any], artifact: Artifact, sources: Sources, judge: TextJudgeConfig
    ) -> dict[str, Any]:
        """Counts, and under "problem" an error meant for the user: Ray Data would wrap one that is raised.

        After one nothing more is asked: the next chunks may be on their way when the driver hears of it.
        """
        counts = {"asked": 0, "answered": 0, "failed": 0, "segments": 0}
        try:
            if not self.problem:
                self._ask(batch, artifact, sources, judge, counts)
        except AnmiError as error:
            self.problem = flatten(error)
        counts["answered"] = counts["asked"] - counts["failed"]
        return {"problem": np.array([self.problem]), **{name: np.array([value]) for name, value in counts.items()}}

    def _ask(
        self,
        batch: dict[str, Any],
        artifact: Artifact,
        sources: Sources,
        judge: TextJudgeConfig,
        counts: dict[str, int],
    ) -> None:
        log = log_of(artifact, judge)
        self.engine = engine = self.engine or judging.build_engine(judge)
        for bucket, start, stop in zip(*(batch[name].tolist() for name in ("bucket", "start", "stop")), strict=True):
            questions = sources.questions(bucket)
            final = log.read(bucket).final(questions.ids[start:stop])
            which = start + np.flatnonzero(~final)

            def hand_over(answers: pa.Table, bucket: int = bucket) -> None:
                log.publish(bucket, answers)
                failed = answers.num_rows - answers["error"].null_count
                for name, value in (("asked", answers.num_rows), ("failed", failed), ("segments", 1)):
                    counts[name] += value

            if len(which):
                engine.ask(questions, iter([which]), hand_over)
