"""A language model that writes queries, asked like a judge about one document, with the wanted kinds as the query.

So its answers have the same log, limits and budget as those of judges.
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
UNREADABLE = "not a list of queries"
_WANTED_TOKENS = 1024  # maximum tokens of the wanted kinds and examples
_EXAMPLES = 20
_AT_ONCE = 32  # answers published together; each takes seconds
_LONGEST = 1 << 16  # maximum characters of a valid answer
_FENCE = re.compile(r"\A```(?:json)?[ \t]*\n(.*)\n```\Z", re.DOTALL)
_MARK = re.compile(r"\A[-*•]? ?([a-z]+):(?= |\Z)")


class QueryWriter(ApiJudge):
    """A writer as a judge."""

    def prompt_builder(self) -> PromptBuilder:
        """Raise ConfigError if the template does not ask for queries."""
        template = load_template(self.prompt.template)
        if template.form != "queries":
            what = f"expected a template of form queries, got {template.form}"
            raise ConfigError(
                what, template.place, "set queries.writer.template to queries, or to a template of that form"
            )
        tokens = load_tokens(None)
        return PromptBuilder(template, tokens, self.prompt.query_tokens, self.prompt.document_tokens)

    def engine(self, lease: Leases | None = None, answered: bool = False) -> ApiEngine:
        return ApiEngine(self.config, lease, self.prompt_builder(), _AT_ONCE, answered)

    def read_reply(self) -> ReadReply:
        """Accept replies that contain queries."""
        return lambda words: UNREADABLE if read_queries(words) is None else 1.0


def writer(config: ApiWriterConfig) -> QueryWriter:
    """Return the writer of `config`."""
    shown = PromptConfig(query_tokens=_WANTED_TOKENS)
    shown = shown.model_copy(update={"template": config.template, "relevance": config.template})
    judge = ApiJudgeConfig(kind="api", name=NAME, endpoint=config.endpoint)
    return QueryWriter(judge.model_copy(update={"prompt": shown}))


def wanted(kinds: Sequence[str], each: int, examples: Sequence[str]) -> str:
    """Return the wanted kinds and numbers, shown instead of a query.

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
    """Return (kind, query) of each query in an answer; None for other formats.

    Formats: a JSON object of lists by kind, alone or in a code fence; or lines, each with its kind. Answers with other
    text are rejected: the model may have followed a document's instructions.

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
