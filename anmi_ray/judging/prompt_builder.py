"""From settings to the exact prompt: each text is neutralised, cut to its limit, and put into the template.

A document is prepared once and stands in many prompts; `PromptBuilder` keeps the two steps apart. `preview` shows one
prompt with all that was done to it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from anmi_ray.config.prompt import PromptConfig
from anmi_ray.core.errors import ConfigError
from anmi_ray.judging.prompt import Message, Template, load_template
from anmi_ray.judging.questions import TextQuestions
from anmi_ray.judging.tokens import ByteTokens, TokenizerTokens, load_tokens

_ASKS = {"yes-no": "asks about one document", "queries": "asks for queries"}  # other forms compare
EMPTY = "empty text"  # why a question about a text without any is not asked
_READ = 64  # characters per token of the beginning of a text
_DOCUMENTS = 4096  # prepared at once: those of a few queries, for prompts stand sorted by query


@dataclass(frozen=True)
class ShownText:
    """A query or document ready for prompts, and whether it was cut, and whether anything in it was neutralised."""

    text: str
    truncated: bool
    altered: bool


@dataclass(frozen=True)
class Preview:
    """A prompt: as chat messages, as one text, and its tokens as messages (`exact`: by the judge's own tokenizer).

    `truncated` and `altered` name parts ("query", "first document", "second document"): those that were cut, and those
    in which special tokens, roles, imitated fences or control characters were neutralised.
    """

    template: str
    messages: list[Message]
    text: str
    tokens: int
    exact: bool
    truncated: tuple[str, ...]
    altered: tuple[str, ...]


@dataclass(frozen=True)
class PromptBuilder:
    """What makes prompts: a template, a judge's tokens, and how many of them a query and a document may have."""

    template: Template
    tokens: ByteTokens | TokenizerTokens
    query_tokens: int
    document_tokens: int

    @staticmethod
    def load(config: PromptConfig) -> PromptBuilder:
        """Read the template and the tokenizer. Raises ConfigError if one fails or the readout does not suit."""
        template = load_template(config.template)
        if template.documents != config.documents or template.form == "queries":
            one = config.is_direct
            raise ConfigError(
                f"of form {template.form}, which {_ASKS.get(template.form, 'compares two documents')}",
                template.place,
                f"prompt.{'relevance' if one else 'template'} takes "
                f"{'one of form yes-no' if one else 'scale, letters, or a template of either form'}",
            )
        if config.readout == "logprob" and template.form == "scale":
            raise ConfigError(
                f"readout logprob needs a template of form letters, not {template.form}",
                template.place,
                "set template: letters, or readout: sign or soft",
            )
        return PromptBuilder(template, load_tokens(config.tokenizer), config.query_tokens, config.document_tokens)

    def query(self, text: str) -> ShownText:
        """A query, neutralised and cut."""
        return self._prepare(text, self.query_tokens)

    def document(self, text: str) -> ShownText:
        """A document (title and body), neutralised and cut; first or second makes no difference."""
        return self._prepare(text, self.document_tokens)

    def messages(self, query: ShownText, first: ShownText, second: ShownText) -> list[Message]:
        """The prompt for prepared texts, `second` left out where the template is about one. DataError: one is empty."""
        return self.template.messages(query.text, first.text, second.text, self.tokens.special_tokens)

    def prompts(self, questions: TextQuestions) -> Callable[[int], list[Message]]:
        """The prompt of a question; each text is prepared once for its neighbours. See `messages`."""
        queries = questions.queries["text"]
        titles = questions.texts["title"]
        bodies = questions.texts["text"]

        @functools.lru_cache(maxsize=_DOCUMENTS)
        def document(row: int) -> ShownText:
            return self.document(f"{titles[row].as_py()}\n{bodies[row].as_py()}".strip())

        @functools.lru_cache(maxsize=1)
        def query(row: int) -> ShownText:
            return self.query(queries[row].as_py())

        def prompt(q: int) -> list[Message]:
            shown = document(int(questions.first[q])), document(int(questions.second[q]))
            return self.messages(query(int(questions.query[q])), *shown)

        return prompt

    def _prepare(self, text: str, limit: int) -> ShownText:
        """All of a long text is read only if its beginning turns out to fit."""
        head = self._cut(text[: limit * _READ], limit)
        return head if head.truncated or len(text) <= limit * _READ else self._cut(text, limit)

    def _cut(self, text: str, limit: int) -> ShownText:
        neutral = self.tokens.neutral(text)
        cut = self.tokens(neutral.strip(), limit)
        return ShownText(cut, cut != neutral.strip(), neutral != text)


def preview(builder: PromptBuilder, query: str, first: str, second: str) -> Preview:
    """The prompt about `query` that shows document `first` before `second`. Raises DataError naming an empty text.

    Of a template about one document, that of `first`.
    """
    parts = {
        "query": builder.query(query),
        "first document": builder.document(first),
        "second document": builder.document(second),
    }
    messages = builder.messages(*parts.values())
    shown = list(parts)[: 1 + builder.template.documents]
    return Preview(
        template=f"{builder.template.name}/{builder.template.version}",
        messages=messages,
        text=builder.template.flat(messages),
        tokens=builder.tokens.count_tokens(messages),
        exact=builder.tokens.exact,
        truncated=tuple(name for name in shown if parts[name].truncated),
        altered=tuple(name for name in shown if parts[name].altered),
    )
