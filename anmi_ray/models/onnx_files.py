"""Export a trained encoder to ONNX next to its weights, and score with such a file.

Outputs: `logits` [N, 1] of a cross-encoder, `sentence_embedding` [X, d] of a bi-encoder, `token_embeddings` [X, T, d]
of late interaction, all unit vectors. Attention is eager: with 8 bits at least as fast as torch's fused form.
Legend: N pairs, X texts, T tokens, d dimensions.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError
from anmi_ray.models.colbert import ColbertTokenizer
from anmi_ray.models.decoder import LastTokenScorer, YesNoScorer
from anmi_ray.models.heads import Scorer
from anmi_ray.models.reranker import Reranker

Numbers = Literal["float32", "int8"]
FILES: dict[Numbers, str] = {"float32": "onnx/model.onnx", "int8": "onnx/model_int8.onnx"}  # the usual names
OUTPUTS = {"cross-encoder": "logits", "bi-encoder": "sentence_embedding", "late-interaction model": "token_embeddings"}
TOLERANCE = 1e-4  # of a float32 file's scores: rounding by another order of summation
_OPSET = 17
_WORDS = ("open", "a", "file", "and", "return", "its", "lines", "as", "texts")
_LENGTHS = (1, 5, 40, 600)  # words of the documents to check a file with: padded and truncated ones


class _Graph(nn.Module):
    """A network with positional inputs, as tracing requires."""

    def __init__(self, network: Scorer, names: list[str]) -> None:
        super().__init__()
        self.network = network
        self.names = names

    def forward(self, *values: Tensor) -> Tensor:
        found = self.network(**dict(zip(self.names, values, strict=True)))
        if isinstance(found, tuple):
            return found[0]
        return found.unsqueeze(-1) if found.dim() == 1 else found


class ByRow(nn.Module):
    """A linear layer that divides each row of its input by the largest absolute value and multiplies its output by it.

    Quantisation has one scale per batch; without this a few tokens with large values would make all others coarse.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, input_: Tensor) -> Tensor:
        largest = torch.maximum(input_.amax(-1, keepdim=True), -input_.amin(-1, keepdim=True)).clamp(min=1e-12)
        product = nn.functional.linear(input_ / largest, self.layer.weight) * largest
        return product if self.layer.bias is None else product + self.layer.bias


class _Session(Scorer):
    """An ONNX file with the interface of the network that it was made from."""

    def __init__(self, network: Scorer, file: Path, threads: int | None) -> None:
        import onnxruntime

        super().__init__()
        self.encoder = network.encoder
        self.size = getattr(network, "size", 0)
        self.pooling = getattr(network, "pooling", None)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads or torch.get_num_threads()
        self.session = onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])
        self.read = {one.name for one in self.session.get_inputs()}  # tracing drops unused inputs

    def forward(self, **inputs: Tensor) -> Any:
        (output,) = self.session.get_outputs()
        (found,) = self.session.run(None, {name: value.numpy() for name, value in inputs.items() if name in self.read})
        value = torch.from_numpy(found)
        if output.name == OUTPUTS["late-interaction model"]:
            return value, None
        return value.squeeze(-1) if output.name == OUTPUTS["cross-encoder"] else value


def check(reranker: Reranker) -> None:
    """Raise ConfigError if packages are missing or the kind of model cannot be exported."""
    missing = [name for name in ("onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        what = f"ONNX files need the package {' and '.join(missing)}"
        raise ConfigError(what, "--onnx, --int8", environment.install("onnx"))
    if isinstance(reranker.network, LastTokenScorer | YesNoScorer):
        what = "a decoder cannot be exported to ONNX: it reads a prompt; vLLM serves its folder"
    elif isinstance(reranker.pairs, ColbertTokenizer):
        what = "a ColBERT checkpoint cannot be exported to ONNX: its markers and skipped words do not fit a graph"
    else:
        return
    raise ConfigError(what, f"model {reranker.name}", "leave out --onnx and --int8")


def write(reranker: Reranker, folder: Path, numbers: Numbers) -> Path:
    """Write one file of `FILES` below `folder`, check it against the model, and return it.

    float32: scores agree within TOLERANCE. int8: dynamic quantisation of matrix products, with a scale per output for
    weights and, in feed-forward layers, per token for activations (`ByRow`). Raises ConfigError as `check`, and if the
    architecture cannot be traced or its graph gives other scores.
    """
    check(reranker)
    file = folder / FILES[numbers]
    file.parent.mkdir(parents=True, exist_ok=True)
    exact = reranker.scorer("float32")
    queries, documents = [" ".join(_WORDS[:3])] * len(_LENGTHS), [" ".join((_WORDS * 60)[:n]) for n in _LENGTHS]
    scores = exact.score(queries, documents)
    try:
        if numbers == "int8":
            with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
                source = Path(scratch) / file.name
                _trace(reranker, _by_row(exact.network), source)
                _quantise(source, file)
        else:
            _trace(reranker, exact.network, file)
        found = reading(reranker, file).score(queries, documents)
    except _unwritable() as error:
        what = f"no ONNX graph can be made of it: {' '.join(str(error).split())[:200]}"
        raise _refusal(what, reranker) from None
    apart = float(np.abs(found - scores).max())
    if numbers == "float32" and not apart <= TOLERANCE:
        raise _refusal(f"its ONNX graph scores otherwise, by up to {apart:.2g}", reranker)
    return file


def _refusal(what: str, reranker: Reranker) -> ConfigError:
    return ConfigError(what, f"model {reranker.name}", "leave out --onnx and --int8 for this architecture")


def reading(reranker: Reranker, file: Path) -> Reranker:
    """The same reranker with the ONNX file as its network, in ONNX Runtime on the CPU."""
    session = _Session(reranker.network, file, reranker.threads)
    return type(reranker)(session, reranker.pairs, reranker.name, reranker.threads)


def _unwritable() -> tuple[type[Exception], ...]:
    """Errors of torch's exporter and ONNX Runtime on networks that they do not support."""
    state: Any = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    of_runtime = ("Fail", "InvalidArgument", "InvalidGraph", "NotImplemented", "RuntimeException")
    return (RuntimeError, torch.onnx.errors.OnnxExporterError, *(getattr(state, name) for name in of_runtime))


def _by_row(network: Scorer) -> Scorer:
    """Wrap the encoder's layers that change the width, where most of the quantisation error arises, in `ByRow`."""
    for holder in list(network.encoder.modules()):
        for name, layer in holder.named_children():
            if isinstance(layer, nn.Linear) and layer.in_features != layer.out_features > 1:
                setattr(holder, name, ByRow(layer))
    return network


def _trace(reranker: Reranker, network: Scorer, file: Path) -> None:
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if reranker.pairs.segments else [])]
    network.encoder.set_attn_implementation("eager")
    values = [torch.zeros(2, 8, dtype=torch.long) for _ in names]
    values[1][:] = 1
    values[1][1, 5:] = 0  # padding, so that the mask is traced
    output = OUTPUTS[getattr(reranker, "kind", "cross-encoder")]
    axes = {name: {0: "batch", 1: "tokens"} for name in names}
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter(
            "ignore"
        )  # of tracing; `write` compares the scores. The dynamo exporter's graphs are slower
        torch.onnx.export(
            _Graph(network, names).eval(),
            tuple(values),
            str(file),
            input_names=names,
            output_names=[output],
            dynamic_axes={**axes, output: axes["input_ids"] if output == "token_embeddings" else {0: "batch"}},
            opset_version=_OPSET,
            dynamo=False,
        )


def _quantise(source: Path, file: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    log = logging.getLogger()
    before = log.level
    log.setLevel(logging.ERROR)  # it recommends preprocessing, through the root logger
    try:
        quantize_dynamic(
            source, file, op_types_to_quantize=["MatMul", "Gemm"], per_channel=True, weight_type=QuantType.QInt8
        )
    finally:
        log.setLevel(before)
