"""A language model that writes queries: asked as a judge is, about one document at a time, in the place of the query
what is wanted. So its answers are bought, kept, limited and paid for as those of judges.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from anmi_ray.config.judge import ApiJudgeConfig
from anmi_ray.config.prompt import PromptConfig
from anmi_ray.config.queries import ApiWriterConfig
from anmi_ray.core.errors import ConfigError
from anmi_ray.judging.http.limits import Leases
from anmi_ray.judging.kinds.api import ApiEngine, ApiJudge
from anmi_ray.judging.preferences import ReadReply
from anmi_ray.judging.prompt import load_template
from anmi_ray.judging.prompt_builder import PromptBuilder
from anmi_ray.judging.tokens import load_tokens

NAME = "writer"
UNREADABLE = "answer is no list of queries"
_WANTED_TOKENS = 1024  # of what is wanted, examples among it
_EXAMPLES = 20
_AT_ONCE = 32  # documents whose answers are published together: each takes seconds
_LONGEST = 1 << 16  # characters of an answer that is read
_FENCE = re.compile(r"\A```(?:json)?[ \t]*\n(.*)\n```\Z", re.DOTALL)
_MARK = re.compile(r"\A[-*•]? ?([a-z]+):(?= |\Z)")


class QueryWriter(ApiJudge):
    """The judge that a writer is."""

    def prompt_builder(self) -> PromptBuilder:
        """See PromptJudge. Raises ConfigError where the template does not ask for queries."""
        template = load_template(self.prompt.template)
        if template.form != "queries":
            what = f"of form {template.form}, which does not ask for queries"
            raise ConfigError(what, template.place, "queries.writer.template takes queries, or one of form: queries")
        tokens = load_tokens(self.prompt.tokenizer)
        return PromptBuilder(template, tokens, self.prompt.query_tokens, self.prompt.document_tokens)

    def engine(self, lease: Leases | None = None, answered: bool = False) -> ApiEngine:
        """See TextJudge."""
        return ApiEngine(self.config, lease, self.prompt_builder(), _AT_ONCE, answered)

    def read_reply(self) -> ReadReply:
        """An answer that holds queries counts as one, any other as a failure."""
        return lambda words: UNREADABLE if read_queries(words) is None else 1.0


def writer(config: ApiWriterConfig) -> QueryWriter:
    """What asks the model that `config` names."""
    shown = PromptConfig(
        query_tokens=_WANTED_TOKENS, document_tokens=config.document_tokens, tokenizer=config.tokenizer
    ).model_copy(update={"template": config.template, "relevance": config.template})
    judge = ApiJudgeConfig(kind="api", name=NAME, endpoint=config.endpoint)
    return QueryWriter(judge.model_copy(update={"prompt": shown}))


def wanted(kinds: Sequence[str], each: int, examples: Sequence[str]) -> str:
    """What a writer is asked for, in the place of a query.

    >>> print(wanted(["keyword", "example"], 2, ["parse dates", "zip two lists"]))
    2 of kind keyword
    2 of kind example
    Examples:
    - parse dates
    - zip two lists
    """
    lines = [f"{each} of kind {kind}" for kind in kinds]
    if "example" in kinds:
        lines += ["Examples:", *(f"- {example}" for example in examples[:_EXAMPLES])]
    return "\n".join(lines)


def read_queries(answer: str) -> list[tuple[str, str]] | None:
    """(kind, query) of each query that an answer holds; None where it is in no form that was asked for.

    A JSON object of lists by kind, alone or in a fence of code; or lines, each with its kind. Nothing is taken out of
    an answer that says anything else: who writes around the object may have followed a document's instructions.

    >>> read_queries('{"keyword": ["slow leak"], "question": []}')
    [('keyword', 'slow leak')]
    >>> read_queries("keyword: slow leak\\nquestion: Why is it flat?")
    [('keyword', 'slow leak'), ('question', 'Why is it flat?')]
    >>> read_queries("Sure! Here they are.")
    """
    answer = answer.strip()
    if not answer or len(answer) > _LONGEST:
        return None
    fenced = _FENCE.match(answer)
    body = fenced.group(1).strip() if fenced else answer
    if body.startswith(("{", "[")):
        return _of_json(body)
    found: list[tuple[str, str]] = []
    for line in filter(str.strip, body.split("\n")):
        mark = _MARK.match(line.strip())
        if mark is None:
            return None
        found.append((mark.group(1), line.strip()[mark.end() :].strip()))
    return found


def _of_json(body: str) -> list[tuple[str, str]] | None:
    try:
        content: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    found: list[tuple[str, str]] = []
    for kind, queries in cast(Mapping[str, Any], content).items():
        if not isinstance(queries, list):
            return None
        for query in cast(list[object], queries):
            if not isinstance(query, str):
                return None
            found.append((kind, query.encode("utf-8", "replace").decode("utf-8")))
    return found
