"""Build prompts: neutralize each text, truncate it, and insert it into the template.

A document is prepared once and used in many prompts, so `PromptBuilder` separates the two steps. `preview` shows a
prompt and what was changed in its texts.
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
EMPTY = "empty text"  # failure reason of questions with an empty text
_READ = 64  # characters read per token of the limit
_DOCUMENTS = 4096  # cache of prepared documents; prompts are sorted by query


@dataclass(frozen=True)
class ShownText:
    """A query or document prepared for prompts, and whether it was truncated or changed by neutralizing."""

    text: str
    truncated: bool
    altered: bool


@dataclass(frozen=True)
class Preview:
    """A prompt.

    messages, text: as chat messages and as one text.
    tokens: length of the messages; exact: counted by the judge's own tokenizer.
    truncated: parts that were truncated ("query", "first document", "second document").
    altered: parts in which special tokens, roles, imitated fences or control characters were neutralized.
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
    """Builds prompts from a template, a judge's token counter, and token limits of queries and documents."""

    template: Template
    tokens: ByteTokens | TokenizerTokens
    query_tokens: int
    document_tokens: int

    @staticmethod
    def load(config: PromptConfig) -> PromptBuilder:
        """Load the template and the tokenizer. Raises ConfigError if one fails or does not match the readout."""
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
        """Neutralize and truncate a query."""
        return self._prepare(text, self.query_tokens)

    def document(self, text: str) -> ShownText:
        """Neutralize and truncate a document (title and body), independent of its position."""
        return self._prepare(text, self.document_tokens)

    def messages(self, query: ShownText, first: ShownText, second: ShownText) -> list[Message]:
        """Return the prompt of prepared texts (one document: without `second`). Raises DataError if a text is empty."""
        return self.template.messages(query.text, first.text, second.text, self.tokens.special_tokens)

    def prompts(self, questions: TextQuestions) -> Callable[[int], list[Message]]:
        """Return a function that builds a question's prompt, with cached texts. See `messages`."""
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
        """Prepare the beginning of a long text first, and all of it only if that fits."""
        head = self._cut(text[: limit * _READ], limit)
        return head if head.truncated or len(text) <= limit * _READ else self._cut(text, limit)

    def _cut(self, text: str, limit: int) -> ShownText:
        neutral = self.tokens.neutral(text)
        cut = self.tokens(neutral.strip(), limit)
        return ShownText(cut, cut != neutral.strip(), neutral != text)


def preview(builder: PromptBuilder, query: str, first: str, second: str) -> Preview:
    """Return the prompt that shows document `first` before `second`, or alone. Raises DataError if a text is empty."""
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
