"""What a document offers as queries, by kind: its title, first sentence, headings, key phrases and identifiers.

Each is a pure function of title and text. A pattern is matched against a line or a token of bounded length, so that no
text takes more than linear time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from anmi_ray.queries.words import WORD, cleaned, normal, says

KINDS = ("title", "sentence", "heading", "phrase", "identifier")
READ = 1 << 16  # characters of a text that are looked at: what it is about stands near its start
_LINE = 240  # characters of a line that may be a heading
_HEADING_WORDS = 16
_TOKEN = 64  # characters of an identifier
_AROUND = 6  # words on each side of an identifier that are looked at
_OTHERS = 4  # of them that are asked with it
_PHRASE = range(2, 6)  # words of a key phrase

_NUMBER = re.compile(r"(?:\d{1,3}(?:\.\d{1,3}){0,5}|[IVX]{1,5})[.)]? +(?=[^\W\d_])")
# A sentence ends before a capital, bracket or quote, so that "e.g. this" and "file.txt" do not end one.
_END = re.compile(r"[.!?](?= [A-Z(\[`'\"*]|$)")
# A signature or a declaration, as the documentation of code begins.
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
    """A query that a document offers. `passage`: where it was read, to be masked with it; `key`: what is counted."""

    kind: str
    text: str
    passage: str
    key: str
    times: int = 1


def offers(title: str, text: str, stop_words: frozenset[str]) -> Iterator[Offer]:
    """All that a document offers, of every kind, in the order in which it stands there."""
    seen = text[:READ]
    if normal(title):
        yield _offer("title", title[:READ])
    sentence = first_sentence(seen)
    if normal(sentence):
        yield _offer("sentence", sentence)
    for heading in headings(seen):
        yield _offer("heading", heading)
    yield from _phrases(seen, stop_words)
    yield from _identifiers(seen, stop_words)


def headings(text: str) -> list[str]:
    """The headings of a text: after #, numbered, in capitals, or underlined. Code between fences has none.

    >>> headings("# One more\\n\\n2.1 Two and three\\n\\nFOUR OR FIVE\\n\\nSix\\n===\\nA line.")
    ['One more', 'Two and three', 'FOUR OR FIVE', 'Six']
    """
    return [heading for _, heading in _lines(text) if heading]


def first_sentence(text: str) -> str:
    """The first sentence of the first paragraph, headings aside; "" where there is none.

    >>> first_sentence("# Leaks\\n\\nA tyre, e.g. an old one,\\nloses air. Mend it.")
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
    """(line, the heading that it is or "") of every line outside of fenced code, underlines left out."""
    fenced = False
    lines = text.splitlines()
    after_blank = True
    skip = False
    for number, line in enumerate(lines):
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
            yield "", ""  # what stands before and after it is no paragraph
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
    """The heading that a line is, without its number and marks; "" where it is none."""
    if not line or len(line) > _LINE:
        return ""
    indented = line.startswith(("    ", "\t"))  # code, whose comments begin so too
    line = line.strip()
    bare = line.lstrip("#")
    marked = 1 <= len(line) - len(bare) <= 6 and bare.startswith(" ") and not indented
    bare = bare.strip("#* \t") if marked else line.strip("* \t")
    number = _NUMBER.match(bare)
    told = bare[number.end() :] if number else bare
    size = len(told.split())
    if marked or underlined:
        return told
    if size > _HEADING_WORDS or told.endswith((".", ",", ";", ":", "!", "?")):
        return ""
    capitals = size > 1 and told.isupper()
    return told if capitals or (number and told[0].isupper()) else ""


def _phrases(text: str, stop_words: frozenset[str]) -> Iterator[Offer]:
    """Runs of two to five words without a stop word or punctuation in or at their ends, each once, with its times."""
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
    """Identifiers that stand twice or more, asked for with the words around one of their places.

    Once is a mention; and with that place masked, the document still names what is asked for.
    """
    times = Counter[str]()
    placed: dict[str, tuple[list[str], int]] = {}
    for line in text.splitlines():
        tokens = line.split()
        for place, token in enumerate(tokens):
            name = token.strip(_PUNCTUATION)
            if 3 < len(name) <= _TOKEN and _IDENTIFIER.fullmatch(name):
                times[name] += 1
                around = tokens[max(0, place - _AROUND) : place + _AROUND + 1]
                known = placed.get(name)
                told = sum(says(normal(word), stop_words) for word in around)
                if known is None or known[1] < told:
                    placed[name] = around, told
    for name, (around, _) in placed.items():
        if times[name] > 1:
            yield Offer("identifier", _asked(name, around, stop_words), " ".join(around), f"name {name}", times[name])


def _asked(name: str, around: list[str], stop_words: frozenset[str]) -> str:
    """An identifier, then the words around it that say something, each once."""
    stripped = (word.strip(_PUNCTUATION) for word in around)
    others = dict.fromkeys(word for word in stripped if word != name and says(normal(word), stop_words))
    return cleaned(" ".join([name, *islice(others, _OTHERS)]))
