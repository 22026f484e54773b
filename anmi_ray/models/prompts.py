"""Prompts of decoders, and tokenization of untrusted texts in which special tokens are plain text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import transformers
from numpy.typing import NDArray
from tokenizers import Tokenizer

from anmi_ray.core.errors import ConfigError

QUERY = "{query}"
DOCUMENT = "{document}"
_ASKED = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
_PAIR = "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
_PAIR += f"<Query>: {QUERY}\n<Document>: {DOCUMENT}"
CHATML = (
    f"<|im_start|>system\n{_ASKED}<|im_end|>\n<|im_start|>user\n{_PAIR}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""Prompt of Qwen3-Reranker (arXiv:2506.05176, section 3, and its model card)."""
PLAIN = f"{_ASKED}\n{_PAIR} Relevant:"
"""The same for tokenizers without ChatML's tokens; the word after the document fixes the document's last tokens."""
_CONTROL = re.compile(r"<[|｜].*[|｜]>|</?think>|</?tool_(call|response)>|\[/?INST\]")
_ROLES = ("query", "document")


@dataclass(frozen=True)
class Prompt:
    r"""A string with `{query}` and, after it, `{document}`, each once. Raises ConfigError otherwise.

    White space next to a text is tokenized with it, as in the whole string.

    >>> found = Prompt("Query: {query}\nDocument: {document} Relevant:")
    >>> found.frame, found.around_query, found.around_document
    (('Query:', 'Document:', ' Relevant:'), (' ', '\n'), (' ', ''))
    """

    text: str

    def __post_init__(self) -> None:
        if [self.text.count(QUERY), self.text.count(DOCUMENT)] != [1, 1] or not self._parts()[1:]:
            raise ConfigError(
                f"needs {QUERY} once and after it {DOCUMENT} once", "train.prompt", "write both, or leave it out"
            )

    def _parts(self) -> tuple[str, ...]:
        before, _, rest = self.text.partition(QUERY)
        between, marker, after = rest.partition(DOCUMENT)
        return (before, between, after) if marker else ()

    @property
    def frame(self) -> tuple[str, str, str]:
        """Text before, between and after query and document."""
        before, between, after = self._parts()
        return before.rstrip(" "), between.lstrip("\n").rstrip(" "), after

    @property
    def around_query(self) -> tuple[str, str]:
        """White space tokenized with the query: before it, after it."""
        before, between, _ = self._parts()
        return _trailing(before), between[: len(between) - len(between.lstrip("\n"))]

    @property
    def around_document(self) -> tuple[str, str]:
        """White space tokenized with the document: before it, after it."""
        return _trailing(self._parts()[1].lstrip("\n")), ""

    def chat_template(self) -> str:
        """Return a Jinja chat template of messages with the roles query and document."""
        pieces = [json.dumps(piece, ensure_ascii=False) for piece in self._parts()]
        texts = [f'messages | selectattr("role", "eq", "{role}") | map(attribute="content") | first' for role in _ROLES]
        ordered = [pieces[0], texts[0], pieces[1], texts[1], pieces[2]]
        return "".join(f"{{{{ {part} }}}}" for part in ordered)


def declared(tokenizer: transformers.PreTrainedTokenizerBase) -> Prompt | None:
    """The prompt of a tokenizer's chat template; None if it lacks the roles query and document."""
    if not isinstance(tokenizer.chat_template, str) or not has_roles(tokenizer.chat_template):
        return None
    roles = [{"role": role, "content": f"{{{role}}}"} for role in _ROLES]
    return Prompt(str(tokenizer.apply_chat_template(roles, tokenize=False)))


def has_roles(template: str) -> bool:
    """Return whether a chat template has the roles query and document."""
    return all(re.search(rf"['\"]{role}['\"]", template) for role in _ROLES)


def prompt_for(tokenizer: transformers.PreTrainedTokenizerBase, text: str | None) -> Prompt:
    """The prompt `text`, else the model's own, else Qwen3-Reranker's, or plain text for a tokenizer without ChatML.

    It starts with the tokenizer's begin-of-text token if all texts do.
    """
    if text is None:
        if (template := declared(tokenizer)) is not None:
            return template
        vocabulary: dict[str, int] = cast(Any, tokenizer).get_added_vocab()
        text = CHATML if {"<|im_start|>", "<|im_end|>"} <= set(vocabulary) else PLAIN
    first = str(tokenizer.bos_token) if begins_with_own(tokenizer) else ""
    return Prompt(text if text.startswith(first) else f"{first}{text}")


def begins_with_own(tokenizer: transformers.PreTrainedTokenizerBase) -> bool:
    """Return whether the tokenizer puts its begin-of-text token before every text."""
    return tokenizer.bos_token is not None and tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]


class TextReader:
    """Tokenizes untrusted texts: nothing in them becomes a special token or one of the prompt's control tokens."""

    def __init__(self, tokenizer: transformers.PreTrainedTokenizerBase, prompt: Prompt) -> None:
        made = json.loads(cast(Any, tokenizer).backend_tokenizer.to_str())
        control: list[int] = []
        for token in made["added_tokens"]:
            text = token["content"]
            of_prompt = text.strip() and len(text) > 1 and text in prompt.text and not text.isalnum()
            if token["special"] or _CONTROL.fullmatch(text) or of_prompt:
                token["special"] = True
                control.append(token["id"])
        self._control = np.array(sorted(control), dtype=np.int32)
        self._tokenizer = Tokenizer.from_str(json.dumps(made))
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def __call__(self, texts: Sequence[str], around: tuple[str, str]) -> list[NDArray[np.int32]]:
        """Token lists of `texts`, each inside the white space `around`."""
        before, after = around
        coded = self._tokenizer.encode_batch_fast(
            [f"{before}{text}{after}" for text in texts], add_special_tokens=False
        )
        lists = [np.array(encoding.ids, dtype=np.int32) for encoding in coded]
        # vocabularies of whole words may still produce one
        return [ids[~np.isin(ids, self._control)] for ids in lists]


def _trailing(text: str) -> str:
    return text[len(text.rstrip(" ")) :]
