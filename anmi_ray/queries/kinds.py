"""Extract candidate queries from a document: title, first sentence, headings, key phrases and identifiers.

Patterns are matched against lines and tokens of bounded length, so the time is linear in the text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from anmi_ray.queries.words import WORD, cleaned, normal, says

KINDS = ("title", "sentence", "heading", "phrase", "identifier")
READ = 1 << 16  # characters of a text that are read: its topic appears near its start
_LINE = 240  # characters of a line that may be a heading
_HEADING_WORDS = 16
_TOKEN = 64  # characters of an identifier
_AROUND = 6  # context words on each side of an identifier
_OTHERS = 4  # context words added to the query
_PHRASE = range(2, 6)  # words of a key phrase

_NUMBER = re.compile(r"(?:\d{1,3}(?:\.\d{1,3}){0,5}|[IVX]{1,5})[.)]? +(?=[^\W\d_])")
# A sentence ends before a capital, bracket or quote, so that "e.g. this" and "file.txt" do not end one.
_END = re.compile(r"[.!?](?= [A-Z(\[`'\"*]|$)")
# A signature or a declaration, with which documentation of code often begins.
_CODE = re.compile(
    r"\s*(?:[\w.]+\(|(?:async|class|const|def|fn|from|func|function|import|let|module|private|public|static|var) )"
)
_ABBREVIATIONS = frozenset({"al", "cf", "dr", "eq", "fig", "mr", "mrs", "no", "prof", "st", "vs"})
_PHRASE_WORD = re.compile(r"\w+(?:[-'’]\w+)*")
_PUNCTUATION = "()[]{}<>\"'`,;:!?.*#|=“”‘’"
_IDENTIFIER = re.compile(
    r"[a-z][a-z0-9]*(?:[A-Z][a-z0-9]*)+|(?:[A-Z][a-z0-9]+){2,}"  # camelCase, CamelCase
    r"|_*[A-Za-z0-9]+(?:_[A-Za-z0-9]+)+_*"  # snake_case
    r"|[A-Za-z_]\w+(?:\.[A-Za-z_]\w+)+"  # dotted.name
    r"|[A-Z]{1,6}-?[0-9]{3,7}"  # E1234, ORA-00942
)


class Offer(NamedTuple):
    """A candidate query of a document.

    text: the query.
    passage: the text it was read from, masked along with it.
    key: what document frequencies are counted by.
    times: occurrences in the document.
    """

    kind: str
    text: str
    passage: str
    key: str
    times: int = 1


def offers(title: str, text: str, stop_words: frozenset[str]) -> Iterator[Offer]:
    """Yield the candidates of every kind."""
    text = text[:READ]
    if normal(title):
        yield _offer("title", title[:READ])
    sentence = first_sentence(text)
    if normal(sentence):
        yield _offer("sentence", sentence)
    for heading in headings(text):
        yield _offer("heading", heading)
    yield from _phrases(text, stop_words)
    yield from _identifiers(text, stop_words)


def headings(text: str) -> list[str]:
    """Return headings: marked with #, numbered, in capitals, or underlined; not inside fenced code.

    >>> headings("# One more\\n\\n2.1 Two and three\\n\\nFOUR OR FIVE\\n\\nSix\\n===\\nA line.")
    ['One more', 'Two and three', 'FOUR OR FIVE', 'Six']
    """
    return [heading for _, heading in _lines(text) if heading]


def first_sentence(text: str) -> str:
    """Return the first sentence of the first paragraph that is not a heading, or "".

    >>> first_sentence("# Leaks\\n\\nA tyre, e.g. an old one,\\nloses air. Fix it.")
    'A tyre, e.g. an old one, loses air.'
    """
    paragraph: list[str] = []
    for line, heading in _lines(text):
        if heading or not WORD.search(line):
            if paragraph:
                break
        elif not paragraph and _CODE.match(line[:_LINE]):
            continue
        else:
            paragraph.append(line)
    whole = cleaned(" ".join(paragraph)).lstrip("->*+|• ")  # marks of quotes and lists
    for match in _END.finditer(whole):
        word = whole[max(0, match.start() - _TOKEN) : match.start()].rpartition(" ")[2].casefold()
        if len(word) > 1 and word not in _ABBREVIATIONS:
            return whole[: match.end()]
    return whole


def _offer(kind: str, text: str) -> Offer:
    return Offer(kind, cleaned(text), text, f"{kind} {normal(text)}")


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield (line, its heading or "") for lines outside fenced code, without the underlines."""
    fenced = False
    lines = text.splitlines()
    after_blank = True
    skip = False
    for number, line in enumerate(lines):
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
            yield "", ""  # ends the paragraph
            continue
        if fenced or skip:
            skip = False
            continue
        below = lines[number + 1] if number + 1 < len(lines) else ""
        skip = after_blank and _is_rule(below) and 0 < len(line.strip()) <= 2 * len(below.strip())
        yield line, _heading(line, skip)
        after_blank = not line.strip()


def _is_rule(line: str) -> bool:
    line = line.strip()
    return 3 <= len(line) <= _LINE and line[0] in "=-~^*" and line == line[0] * len(line)


def _heading(line: str, underlined: bool) -> str:
    """Return the heading in a line without its number and marks, or ""."""
    if not line or len(line) > _LINE:
        return ""
    indented = line.startswith(("    ", "\t"))  # code, whose comments begin so too
    line = line.strip()
    bare = line.lstrip("#")
    marked = 1 <= len(line) - len(bare) <= 6 and bare.startswith(" ") and not indented
    bare = bare.strip("#* \t") if marked else line.strip("* \t")
    number = _NUMBER.match(bare)
    heading = bare[number.end() :] if number else bare
    size = len(heading.split())
    if marked or underlined:
        return heading
    if size > _HEADING_WORDS or heading.endswith((".", ",", ";", ":", "!", "?")):
        return ""
    capitals = size > 1 and heading.isupper()
    return heading if capitals or (number and heading[0].isupper()) else ""


def _phrases(text: str, stop_words: frozenset[str]) -> Iterator[Offer]:
    """Yield phrases of two to five words that contain no stop word or punctuation, with their counts."""
    times = Counter[str]()
    shown: dict[str, str] = {}
    for run in _runs(text, stop_words):
        folded = [word.casefold() for word in run]
        for size in _PHRASE:
            for start in range(len(run) - size + 1):
                key = " ".join(folded[start : start + size])
                times[key] += 1
                shown.setdefault(key, " ".join(run[start : start + size]))
    for key, phrase in shown.items():
        yield Offer("phrase", phrase, phrase, f"phrase {key}", times[key])


def _runs(text: str, stop_words: frozenset[str]) -> Iterator[list[str]]:
    run: list[str] = []
    end = 0
    for match in _PHRASE_WORD.finditer(text):
        word = match.group()
        if run and not text[end : match.start()].isspace():
            yield run
            run = []
        if len(word) <= _TOKEN and says(word.casefold(), stop_words):
            run.append(word)
        elif run:
            yield run
            run = []
        end = match.end()
    if run:
        yield run


def _identifiers(text: str, stop_words: frozenset[str]) -> Iterator[Offer]:
    """Yield identifiers that occur at least twice, with the words around the occurrence that has the best context.

    One occurrence is a mere mention; with two, the document still names the identifier when one is masked.
    """
    times = Counter[str]()
    contexts: dict[str, tuple[list[str], int]] = {}
    for line in text.splitlines():
        tokens = line.split()
        for place, token in enumerate(tokens):
            name = token.strip(_PUNCTUATION)
            if 3 < len(name) <= _TOKEN and _IDENTIFIER.fullmatch(name):
                times[name] += 1
                around = tokens[max(0, place - _AROUND) : place + _AROUND + 1]
                best = contexts.get(name)
                informative = sum(says(normal(word), stop_words) for word in around)
                if best is None or best[1] < informative:
                    contexts[name] = around, informative
    for name, (around, _) in contexts.items():
        if times[name] > 1:
            yield Offer(
                "identifier", _with_context(name, around, stop_words), " ".join(around), f"name {name}", times[name]
            )


def _with_context(name: str, around: list[str], stop_words: frozenset[str]) -> str:
    """Return the identifier followed by distinct informative words of its context."""
    stripped = (word.strip(_PUNCTUATION) for word in around)
    others = dict.fromkeys(word for word in stripped if word != name and says(normal(word), stop_words))
    return cleaned(" ".join([name, *islice(others, _OTHERS)]))
