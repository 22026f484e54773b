"""`anmi init FILES`: write the settings of a run over a user's documents and queries."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from anmi_ray.api import recognizing
from anmi_ray.api.recognizing import Recognized
from anmi_ray.config.load import run_name
from anmi_ray.core.errors import ConfigError, from_file_error
from anmi_ray.tables import trec

PLACE = "anmi init"
_FEW_TRAIN = 200  # train queries below which a training rarely gains
# Candidates per query, and comparisons of each, from thorough to cheap; the first without a budget.
_SIZES = ((20, 6), (20, 4), (10, 4), (10, 2))
# By provider: address, variable of the key, and settings with which its models reason least; most refuse a temperature.
_PROVIDERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "openai": (
        "https://api.openai.com/v1",
        "OPENAI_API_KEY",
        {"temperature": None, "extra": {"reasoning_effort": "none"}},
    ),
    "anthropic": (
        "https://api.anthropic.com/v1",
        "ANTHROPIC_API_KEY",
        {"temperature": None, "extra": {"thinking": {"type": "disabled"}}},
    ),
    "gemini": (
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "GEMINI_API_KEY",
        {"temperature": None, "max_tokens": 1024, "extra": {"reasoning_effort": "low"}},
    ),
    "mistral": ("https://api.mistral.ai/v1", "MISTRAL_API_KEY", {}),
}
_LOGPROBS = {"logprobs": 20, "max_tokens": 1}
_PRICES_OF = "1 December 2026"
# Dollars per million tokens of prompts and of answers, by LiteLLM's table.
_PRICES = {
    "gpt-6-luna": (0.10, 0.50),
    "gpt-6.1-terra": (1.00, 5.00),
    "gpt-4.1-mini": (0.40, 1.60),
    "gpt-4o-mini": (0.15, 0.60),
    "claude-haiku-5-5": (0.10, 0.50),
    "claude-sonnet-5-5": (2.00, 10.00),
    "gemini-3.5-flash-lite": (0.30, 2.50),
    "gemini-3.8-flash": (0.75, 3.75),
    "mistral-small-2603": (0.15, 0.60),
    "mistral-large-4": (0.70, 2.10),
}
JUDGES = (
    f"{', '.join(f'{name}:MODEL' for name in _PROVIDERS)}, an address such as http://127.0.0.1:8000/v1, "
    "reranker:MODEL, simulated (needs labels), or none"
)


@dataclass(frozen=True)
class Started:
    """What `start` wrote: the file of settings, and lines that say what was understood."""

    path: Path
    tables: dict[str, Recognized]
    lines: list[str]
    next: str  # what can be done: "queries" (there are none), "plan", or "run" (no judge is asked)


def start(
    documents: Path,
    queries: Path | None,
    labels: Path | None,
    ranking: Path | None,
    judge: str,
    price: tuple[float, float] | None,
    budget: float | None,
    out: Path,
    columns: Mapping[str, str],
    encoding: str | None,
) -> Started:
    """Recognize the files and write `out`, and copies next to it where needed.

    ranking: what the search in use finds, as a run; what is trained is compared with it.
    price: dollars per million tokens of prompts and of answers.
    columns: by role, the names of columns that are not recognized.
    Raises ConfigError for a judge or an option that is unknown, DataError for files that cannot be read.
    """
    if out.exists():
        raise ConfigError("the file exists", str(out), "give another name: --out FILE")
    if unknown := set(columns) - set(recognizing.NAMES):
        expected = ", ".join(recognizing.NAMES)
        raise ConfigError(f"expected one of {expected}, got {min(unknown)}", "--column", "--column text=NAME")
    try:
        codecs.lookup(encoding or "utf-8")
    except LookupError:
        raise ConfigError(f"Python knows no encoding {encoding}", "--encoding", "--encoding cp1252") from None
    panel = judge_of(judge, price)
    if judge == "simulated" and labels is None and not (documents / "qrels").is_dir():
        raise ConfigError("simulated judges know the labels, and there are none", "--judge", "add --labels FILE")
    priced = None if panel is None else panel.get("endpoint", {}).get("input_price")
    if budget is not None and priced is None:
        raise ConfigError("a budget needs a judge with prices", "--budget", "add --judge openai:MODEL --price IN,OUT")
    unread: recognizing.Skipped = {}
    copies = out.with_name(f"{out.stem}-files")
    corpus, tables = corpus_of(documents, queries, labels, copies, columns, encoding, unread)
    settings = settings_of(run_name(out), corpus, panel, budget)
    lines = recognizing.skipped_lines("labels", unread)
    if ranking is not None:
        trec.one_system(ranking, lines.append)
        retrieval = {"retrievers": ["engine", "bm25", "dense"], "engine": str(ranking)}
        settings["retrieve"] = settings.get("retrieve", {}) | retrieval
        settings["evaluate"] = settings.get("evaluate", {}) | {"baseline": "engine"}
    lines += _sized(settings, budget) if budget is not None else []
    if priced is not None and price is None:
        lines.append(f"prices are those of {_PRICES_OF}; add --price IN,OUT for others")
    try:
        text = _HEAD_OF_FILE.format(name=out) + yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise from_file_error(error, str(out)) from None
    if "queries" not in tables:
        return Started(out, tables, [*lines, "no queries yet"], "queries")
    counted, has_train = _counted(settings)
    return Started(out, tables, lines + counted, ("run" if panel is None else "plan") if has_train else "queries")


_HEAD_OF_FILE = """# Written by anmi init; every setting is in docs/reference/settings.md.
#   anmi plan {name}    what will be asked, what it costs, what is sent where
#   anmi run {name}     all of it; running it again continues
"""


def corpus_of(
    documents: Path,
    queries: Path | None,
    labels: Path | None,
    copies: Path,
    columns: Mapping[str, str],
    given: str | None,
    unread: recognizing.Skipped,
) -> tuple[dict[str, Any], dict[str, Recognized]]:
    """Return the corpus settings and the tables by name; count labels that cannot be read in `unread`."""
    if (documents / "corpus.jsonl").is_file():
        if queries is not None or labels is not None:
            raise ConfigError(
                f"{documents} is a BEIR folder, which has its queries and labels", PLACE, f"anmi init {documents}"
            )
        rows = recognizing.beir(documents)
        return {"reader": "beir", "path": str(documents)}, rows
    tables = {"documents": recognizing.documents(documents, copies, columns, given)}
    corpus: dict[str, Any] = {"reader": "table", "documents": str(tables["documents"].path)}
    if queries is not None:
        tables["queries"] = recognizing.queries(queries, copies, columns, given)
        corpus["queries"] = str(tables["queries"].path)
    if labels is not None:
        corpus["qrels"] = recognizing.labels(labels, copies, unread)
    named = {role: name for one in tables.values() for role, name in one.columns.items()}
    if named:
        corpus["columns"] = named
    return corpus, tables


def judge_of(text: str, price: tuple[float, float] | None) -> dict[str, Any] | None:
    """Return a judge's settings; None for `none`. Raises ConfigError if it is unknown."""
    kind, _, model = text.partition(":")
    if text == "none":
        return None
    if text == "simulated":
        return {"preset": "panel"}
    if kind == "reranker" and model:
        return {"kind": "encoder", "name": "reranker", "model": model}
    if kind in _PROVIDERS and model:
        address, key, sampling = _PROVIDERS[kind]
        endpoint: dict[str, Any] = {"base_url": address, "model": model, "key_env": key, "allow_external": True}
        endpoint |= _LOGPROBS if model.startswith(("gpt-3", "gpt-4")) else sampling
    elif kind in ("http", "https"):
        address, _, model = text.partition("#")
        endpoint = {"base_url": address, "model": model or _served_model(address), **_LOGPROBS}
    else:
        raise ConfigError(f"expected {JUDGES}; got {text}", "--judge", "--judge openai:gpt-6-luna")
    if price := price or _PRICES.get(model):
        endpoint |= {"input_price": price[0], "output_price": price[1]}
    prompt = {"template": "letters"} | ({"readout": "logprob"} if "logprobs" in endpoint else {})
    return {"kind": "api", "name": "llm", "endpoint": endpoint, "prompt": prompt}


def _served_model(address: str) -> str:
    """Return the model that a server lists. Raises ConfigError unless it lists one."""
    import httpx2

    try:
        served = httpx2.get(f"{address.rstrip('/')}/models", timeout=5.0).raise_for_status().json()["data"]
        names = [str(one["id"]) for one in served]
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"its models cannot be listed: {error}", address, f"name one: --judge {address}#MODEL"
        ) from None
    if len(names) != 1:
        there = ", ".join(names[:5]) or "none"
        raise ConfigError(f"expected one model, got {there}", address, f"name one: --judge {address}#MODEL")
    return names[0]


def settings_of(
    name: str, corpus: dict[str, Any], panel: dict[str, Any] | None, budget: float | None
) -> dict[str, Any]:
    measured = "qrels" in corpus or corpus["reader"] == "beir"
    corpus = {**corpus, "max_train_queries": 1000}
    settings: dict[str, Any] = {"name": name, "corpus": corpus}
    if panel is None:
        return settings | {"recipe": "infonce-mined", "mine": {"anchors": "retrieved"}}
    candidates, degree = _SIZES[0]
    settings |= {"retrieve": {"candidates": candidates}, "compare": {"degree": degree}}
    asked: dict[str, Any] = panel if "preset" in panel else {"judges": [panel]}
    settings["judge"] = asked | ({} if budget is None else {"budget": {"dollars": budget}})
    settings["mine"] = {"anchors": "confirmed", "negatives": 4}
    if not measured:
        settings["evaluate"] = {"judged": "unlabelled"}
    return settings


def _sized(settings: dict[str, Any], budget: float) -> list[str]:
    """Reduce comparisons, then queries, until the plan costs at most `budget` dollars; return a line about it."""
    from anmi_ray.config.load import validate
    from anmi_ray.planning.plan import plan

    most: int = settings["corpus"]["max_train_queries"]
    sizes = [(*size, most) for size in _SIZES] + [(*_SIZES[-1], most // 2), (*_SIZES[-1], most // 4)]
    lines: list[str] = []
    for candidates, degree, queries in sizes:
        settings["retrieve"]["candidates"], settings["compare"]["degree"] = candidates, degree
        settings["corpus"]["max_train_queries"] = queries
        dollars = sum(float(stage["dollars"]) for stage in plan(validate(settings, PLACE), offline=True).stages)
        size = f"{candidates} candidates a query, each compared with {degree} others, at most {queries:,} train queries"
        lines = [f"about {dollars:,.2f} dollars: {size}"]
        if dollars <= budget:
            return lines
    return [*lines, f"that is more than {budget:g} dollars: judging will stop there"]


def _counted(settings: dict[str, Any]) -> tuple[list[str], bool]:
    """Return lines about the numbers of documents and queries, and whether there is a train query."""
    from anmi_ray.config.load import validate
    from anmi_ray.pipeline.requirements import counts_of

    experiment = validate(settings, PLACE)
    counts = counts_of(experiment, most_s=60.0)
    if counts is None:
        return [], True
    lines = [f"{counts.documents:,} documents; queries: {counts.in_words}", *counts.notices(experiment)]
    if not counts.queries["train"]:
        lines.append("no query is left to train with: queries can be made of the documents")
    elif counts.queries["train"] < _FEW_TRAIN:
        lines.append(f"fewer than {_FEW_TRAIN} train queries: a training will hardly gain; anmi queries makes more")
    return lines, counts.queries["train"] > 0
