"""What every judge that reads texts is: an engine that takes questions and hands over what it got, in batches.

An engine is built where it runs (an actor) and may hold a connection or a model. Questions come in slices, which are
let through as they are taken (a budget may end them): an engine takes a slice when it is about to ask it. It hands over
every question that it took exactly once, as an answer or as a failure with its reason, at the latest when it returns.
Letters: N questions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import pyarrow as pa

from anmi_ray.config.base import whole
from anmi_ray.config.judge import ApiJudgeConfig, EncoderJudgeConfig, NullJudgeConfig, TextJudgeConfig
from anmi_ray.config.vllm import VllmJudgeConfig
from anmi_ray.identity import digest, uniforms
from anmi_ray.judging import answers
from anmi_ray.judging.bought import Readout
from anmi_ray.judging.limits import Leases
from anmi_ray.judging.prompt import load_template
from anmi_ray.judging.questions import Rows, TextQuestions
from anmi_ray.judging.readout import vote
from anmi_ray.judging.spend import Spend
from anmi_ray.records import ANSWER

HandOver = Callable[[pa.Table], None]  # takes Answer rows
Slices = Iterator[Rows]  # of questions, each int64[N]; the next may take milliseconds, and a thread may take it


class Engine(Protocol):
    """Asks questions; see the module. at_once: questions that a slice has, at least; whole queries."""

    at_once: int

    @property
    def spend(self) -> Spend:
        """What was sent and spent so far, since the engine was built; a call that is under way counts."""
        ...

    def ask(self, questions: TextQuestions, slices: Slices, hand_over: HandOver) -> None:
        """Ask all questions of all slices."""
        ...


def answer_rows(questions: TextQuestions, which: Rows, **columns: object) -> pa.Table:
    """Answer rows of the questions `which`; a column that is not given is null, zero or false throughout."""
    count = len(which)
    given: dict[str, object] = {**questions.hashes(which), **columns}
    for field in ANSWER.schema:
        if field.name not in given:
            empty = pa.nulls(count, field.type) if field.nullable else pa.repeat(pa.scalar(0).cast(field.type), count)
            given[field.name] = empty
    return ANSWER.table(given)


def judge_id(config: TextJudgeConfig) -> str:
    """Names a judge's answers: everything that can change one, and not what the judge is called in a panel."""
    content: dict[str, object] = {"kind": config.kind}
    if isinstance(config, ApiJudgeConfig | VllmJudgeConfig):
        shown = whole(config.prompt)
        content |= {name: shown[name] for name in ("query_tokens", "document_tokens", "tokenizer")}
        content["template"] = load_template(config.prompt.template).content_hash
        content["logprob"] = config.prompt.readout == "logprob"  # then probabilities are kept, else words
    if isinstance(config, ApiJudgeConfig):
        content |= {"sampling": whole(config.endpoint.sampling), "at": config.identity or config.endpoint.base_url}
    if isinstance(config, EncoderJudgeConfig):
        from anmi_ray.judging.encoder import identity

        content |= identity(config)
    if isinstance(config, VllmJudgeConfig):
        from anmi_ray.judging.vllm import revision

        sampling = ("temperature", "max_tokens", "seed") if not content["logprob"] else ()  # else nothing is sampled
        of_model = ("chat", "dtype", "max_model_len", "engine_kwargs", "trust_remote_code")
        content |= {name: whole(getattr(config, name)) for name in (*of_model, *sampling)}
        content["weights"] = revision(config)
    return digest("judge", json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)).hex()[:16]


def build_engine(config: TextJudgeConfig, lease: Leases | None = None) -> Engine:
    """The engine of a judge, for use where it was built; `lease` where several share a server's limits a minute."""
    if isinstance(config, ApiJudgeConfig):
        from anmi_ray.judging.api import ApiEngine

        return ApiEngine(config, lease)
    if isinstance(config, EncoderJudgeConfig):
        from anmi_ray.judging.encoder import EncoderEngine

        return EncoderEngine(config)
    assert isinstance(config, NullJudgeConfig), "a vllm judge's engines are Ray's: stages.vllm"
    return NullEngine(config)


def readout(config: TextJudgeConfig) -> Readout | None:
    """How a judge's words are read; None where it gives probabilities."""
    if isinstance(config, NullJudgeConfig | EncoderJudgeConfig) or config.prompt.readout == "logprob":
        return None
    form, kind = load_template(config.prompt.template).form, config.prompt.readout

    def read(words: str) -> float | str:
        found = answers.read(words, form)
        return found.reason if isinstance(found, answers.Unreadable) else float(vote(np.array([found]), kind)[0])

    return read


class NullEngine:
    """Answers by hash, without reading: what is left is the cost of everything but judging."""

    at_once = 16_384

    def __init__(self, config: NullJudgeConfig) -> None:
        self.config, self.spend = config, Spend()

    def ask(self, questions: TextQuestions, slices: Slices, hand_over: HandOver) -> None:
        """One slice after another."""
        for which in slices:
            p = uniforms(questions.ids[which], "null")
            self.spend += Spend(requests=len(which))
            hand_over(answer_rows(questions, which, log_first=np.log(p), log_second=np.log1p(-p)))
