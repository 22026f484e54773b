"""Words of scripts that a tokenizer for English does not find.

Two kinds: scripts that write no spaces between words (and Korean, whose words carry particles), which are indexed by
pairs of characters, as Lucene's CJKAnalyzer does; and the scripts of India, whose vowel signs do not match `\\w` in
Python, so that a word would be cut into pieces.
"""

from __future__ import annotations

import re
import unicodedata

VERSION = 1  # raised when the same text would give other words
_SYLLABLES = (  # one character can be a word: Han, Hangul, Yi
    "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff\uac00-\ud7a3\ua000-\ua48c"
)
_UNSPACED = _SYLLABLES + (
    "\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3105-\u312f"  # Hiragana, Katakana, Bopomofo
    "\u0e01-\u0e4e\u0e81-\u0ece\u0f40-\u0fbc\u1000-\u103f\u104e-\u109d\ua9e0-\ua9fe\uaa60-\uaadf"  # Thai to Tai Viet
    "\u1780-\u17d3\u1950-\u19c9\u1a20-\u1a7c\u1b00-\u1b4c\ua980-\ua9c0"  # Khmer, Tai Le and Lue, Tham, Bali, Java
)
_INDIC = "\u0900-\u0963\u0966-\u0dff"  # without the danda, which ends a sentence
_JOINERS = "\u200c\u200d"
_COMPATIBLE = "\uff01-\uffee\u1100-\u11ff\u3131-\u318e"  # full and half width forms and jamo, made usual by NFKC
_ANY = re.compile(f"[{_UNSPACED}{_INDIC}{_COMPATIBLE}]+")
_RUN = re.compile(f"[{_UNSPACED}]+|[{_INDIC}][{_INDIC}{_JOINERS}]*")
_SYLLABLE = re.compile(f"[{_SYLLABLES}]")
_INDIC_WORD = re.compile(f"[{_INDIC}]")


def has_other_scripts(text: str) -> bool:
    """Whether `other_words` would find anything or change the text."""
    return not text.isascii() and _ANY.search(text) is not None


def other_words(text: str) -> tuple[str, list[str]]:
    """The text without its words in these scripts, and these words.

    A run of characters gives every pair of neighbours, and every character that can be a word.

    >>> other_words("用Python写 猫")
    (' Python   ', ['用', '写', '猫'])
    >>> other_words("緑茶")[1], other_words("ชาไทย")[1]
    (['緑', '茶', '緑茶'], ['ชา', 'าไ', 'ไท', 'ทย'])
    """
    if not has_other_scripts(text):
        return text, []
    text = _ANY.sub(lambda part: unicodedata.normalize("NFKC", part[0]), text)
    words: list[str] = []
    for run in _RUN.findall(text):
        if _INDIC_WORD.match(run):
            words.append(run.translate({ord(joiner): None for joiner in _JOINERS}))
            continue
        words += _SYLLABLE.findall(run)
        words += [run[i : i + 2] for i in range(len(run) - 1)]
        if len(run) == 1 and not _SYLLABLE.match(run):
            words.append(run)
    return _RUN.sub(" ", text), words
