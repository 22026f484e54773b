"""Judge prompts: templates in files, rendered with the query, the first document and the second, in this order.

A template is Jinja with front matter (name, version, form) and the blocks `system`, `user` and, for engines without
chat messages, `cue`, which ends the text. It contains {{ query }}, {{ first }} and {{ second }}, once each and
in this order, so that prompts with the same query and first document share a prefix, which engines cache. The three
texts are already neutralized and fenced.

A template of form yes-no asks about one document: it contains {{ query }} and {{ first }}. A template of form queries
asks for queries that a document answers: it contains {{ wanted }} (the kinds and how many) and {{ document }}.

Signs: an answer is a number s in [-1, 1] or a letter. 1 and A prefer the document shown first, which the judge knows as
document A; -1 and B prefer the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Literal, cast

import jinja2
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from anmi_ray.config import yaml_text
from anmi_ray.core import identity
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.judging.sanitize import LABELS, fenced, neutralise

Form = Literal["scale", "letters", "yes-no", "queries"]
Message = dict[str, str]  # role, content
SHIPPED = ("scale", "letters")
RELEVANCE = "relevance"  # the shipped template about one document
WRITING = "queries"  # the shipped template that asks for queries
_LAYOUT_WITHOUT_SYSTEM = 2  # an empty block system sends no message
LAYOUT = 1  # version of the layout around a template: neutralizing, fences, joints; part of every content hash

_BLOCKS = ("system", "user", "cue")
_NAMES = ("query", "first", "second")
_WRITING_NAMES = ("wanted", "document")
_PARTS = ("query", "first document", "second document")
_FRONT = re.compile(r"\A---\n(.*?)\n---\n(.*)\Z", re.DOTALL)
_REMEDY = (
    "see the shipped templates scale.jinja, letters.jinja, relevance.jinja and queries.jinja in "
    "anmi_ray/judging/templates"
)
# What rendering a user's template may raise.
_FAULTS = (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError)


class _Front(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$")
    version: int = Field(ge=1)
    form: Form


@dataclass(frozen=True)
class Template:
    """A prompt template.

    form: kind of question.
    source: content of its file.
    place: where it was read from, for messages.
    """

    name: str
    version: int
    form: Form
    source: str
    place: str

    @property
    def documents(self) -> int:
        """Number of documents shown."""
        return 1 if self.form in ("yes-no", "queries") else 2

    @property
    def content_hash(self) -> str:
        """Hash (32 hexadecimal digits) of the template's file and layout."""
        layout = LAYOUT if self._render("system", {}) else _LAYOUT_WITHOUT_SYSTEM
        return identity.digest("template", layout, self.source).hex()

    def messages(self, query: str, first: str, second: str, special_tokens: Iterable[str] = ()) -> list[Message]:
        """Return the chat messages that ask which of two documents answers the query better.

        A template about one document ignores `second`; for one that asks for queries, `query` is the wanted kinds.
        `special_tokens` of the judge's tokenizer are neutralized in the texts, in addition to common ones.
        Raises DataError if a text is empty, ConfigError if the template does not show the texts in full.
        """
        names = _WRITING_NAMES if self.form == "queries" else _NAMES[: 1 + self.documents]
        parts = zip(names, _PARTS, LABELS, (query, first, second), strict=False)
        values = {name: _shown(part, label, text, special_tokens) for name, part, label, text in parts}
        texts = list(values.values())
        system = self._render("system", {})
        user = self._render("user", values)
        places = [user.find(text) for text in texts]
        if places != sorted(places) or any(user.count(text) != 1 for text in texts):
            named = f"{', '.join(list(values)[:-1])} and {list(values)[-1]}"
            message = f"must show {named} whole, once each and in this order, in its block user"
            raise ConfigError(message, self.place, _REMEDY)
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return messages if system else messages[1:]

    def text(self, query: str, first: str, second: str, special_tokens: Iterable[str] = ()) -> str:
        """Return the prompt as one text that ends with a cue for the answer, for engines without a chat template."""
        return self.flat(self.messages(query, first, second, special_tokens))

    def flat(self, messages: list[Message]) -> str:
        """Return messages of this template as one text."""
        return "\n\n".join([*(message["content"] for message in messages), self._render("cue", {})]).strip()

    def _render(self, block: str, values: dict[str, str]) -> str:
        compiled = _compiled(self.source, self.place)
        if block not in compiled.blocks:
            return ""
        try:
            return "".join(compiled.blocks[block](compiled.new_context(values))).strip()
        except _FAULTS as error:
            raise ConfigError(f"block {block} cannot be rendered: {error}", self.place, _REMEDY) from None


def load_template(name_or_path: str) -> Template:
    """Load a shipped template by name, or one from a file.

    Raises ConfigError if it does not exist, its front matter is incomplete, or it does not render as a judge needs.
    """
    if name_or_path in (*SHIPPED, RELEVANCE, WRITING):
        file = resources.files("anmi_ray.judging").joinpath(f"templates/{name_or_path}.jinja")
        template = _parse(file.read_text(encoding="utf-8"), f"template {name_or_path}")
    else:
        try:
            source = Path(name_or_path).expanduser().read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = "no such template" if isinstance(error, FileNotFoundError) else f"cannot be read: {error}"
            remedy = (
                f"name a shipped template ({', '.join((*SHIPPED, RELEVANCE, WRITING))}), or give the path of a file"
            )
            raise ConfigError(reason, f"template {name_or_path}", remedy) from None
        template = _parse(source, f"template {name_or_path}")
    _probe(template)
    return template


def without_system(messages: Sequence[Mapping[str, str]]) -> list[Message]:
    """Merge the system message into the user's, for chat templates without a system role."""
    return [{"role": "user", "content": "\n\n".join(message["content"] for message in messages)}]


def _parse(source: str, place: str) -> Template:
    source = source.removeprefix("\ufeff").replace("\r\n", "\n")
    parts = _FRONT.match(source)
    if parts is None:
        raise ConfigError("does not begin with front matter between two lines ---", place, _REMEDY)
    try:
        front = _Front.model_validate(yaml_text.parse(parts.group(1), place, first_line=2))
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, detail['loc'])) or 'front matter'}: {detail['msg']}"
            for detail in error.errors(include_url=False)
        )
        raise ConfigError(
            wrong, place, "begin with name, version (1, 2, …) and form (scale, letters, yes-no or queries)"
        ) from None
    return Template(front.name, front.version, front.form, source, place)


@lru_cache(maxsize=16)
def _compiled(source: str, place: str) -> jinja2.Template:
    """Compile a template in a sandbox without access to Python attributes or files; undefined names are errors."""
    environment = ImmutableSandboxedEnvironment(
        undefined=jinja2.StrictUndefined,
        loader=jinja2.DictLoader({}),
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    body = cast("re.Match[str]", _FRONT.match(source)).group(2)
    first_line = source[: len(source) - len(body)].count("\n")
    try:
        for node in environment.parse(body).body:
            _check_block(node, first_line, place)
        return environment.from_string(body)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"line {first_line + error.lineno}: {error.message}", place, _REMEDY) from None


def _check_block(node: nodes.Node, first_line: int, place: str) -> None:
    """Raise ConfigError for text outside blocks, which is not rendered."""
    if isinstance(node, nodes.Block):
        if node.name not in _BLOCKS:
            message = f"line {first_line + node.lineno}: block {node.name} is not one of {', '.join(_BLOCKS)}"
            raise ConfigError(message, place, _REMEDY)
        return
    blank = isinstance(node, nodes.Output) and all(
        isinstance(part, nodes.TemplateData) and not part.data.strip() for part in node.nodes
    )
    if not blank:
        message = f"line {first_line + node.lineno}: text outside blocks is not rendered"
        raise ConfigError(message, place, f"move it into a block ({', '.join(_BLOCKS)})")


def _probe(template: Template) -> None:
    """Render the template on probes. Raises ConfigError if it fails or the prefix depends on the second document."""
    if "user" not in _compiled(template.source, template.place).blocks:
        raise ConfigError("has no block user", template.place, _REMEDY)
    query = "Probe query?"
    first = "Probe, the First one."
    short, long = (
        template.text(query, first, second) for second in ("Probe, the Second one.", "Another\nprobe " * 400)
    )
    shown = _shown(_PARTS[1], LABELS[1], first, ())
    if not long.startswith(short[: short.index(shown) + len(shown)]):
        message = "what precedes the second document depends on it: prompts would share no beginning"
        raise ConfigError(message, template.place, _REMEDY)


def _shown(part: str, label: str, text: str, special_tokens: Iterable[str]) -> str:
    """Return a text neutralized, stripped and fenced. Raises DataError if it is empty."""
    clean = neutralise(text, special_tokens).strip()
    if not clean:
        raise DataError(f"the {part} is empty", "prompt", "leave out documents and queries without text")
    return fenced(label, clean)
