"""How language models phrase an answer: the patterns by which `answers` finds a number or a letter, and what it is not.

Every repetition is bounded or anchored, so reading takes time linear in the answer.
"""

from __future__ import annotations

import re

_TAGS = "think|thinking|thought|reasoning"
THOUGHT_END = re.compile(rf"</(?:{_TAGS})>", re.IGNORECASE)
THOUGHT_START = re.compile(rf"<(?:{_TAGS})>", re.IGNORECASE)
CODE_FENCE = re.compile(
    r"(?:```|~~~)(?:(?:json|text|txt|plaintext|markdown|md|latex|xml|yaml|python)\b)?", re.IGNORECASE
)
STYLE = re.compile(r"</?(?:b|i|em|strong|p|u|code|span|br ?/?)>", re.IGNORECASE)
TAG = re.compile(r"<(/?)([A-Za-z]{1,20})>")  # <answer>A</answer>

# One sign for one meaning: dashes, full-width forms, and the markup that is put around answers.
PLAIN = {ord(dash): "-" for dash in "‐‑‒–—−﹣－"}
PLAIN |= {0xFF10 + digit: str(digit) for digit in range(10)} | {0xFF21 + n: chr(65 + n) for n in range(26)}
PLAIN |= {ord("＋"): "+", ord("．"): ".", ord("："): ":", ord("％"): "%", ord("’"): "'", ord("“"): '"', ord("”"): '"'}
PLAIN |= dict.fromkeys(map(ord, "*`"), "") | dict.fromkeys(map(ord, "_$#\\"), " ")

# One word, marked or not, without a comma or the like, after which more would come.
ONE_WORD = re.compile(r"[\s*_`\"'(\[]*[^\W\d_]+[\s*_`\"')\].!]*")

# --- numbers
_VALUE = r"[-+]?(?:\d{1,30}(?:\.\d{1,40})?|0,\d{1,40}|\.\d{1,40})(?:[eE][-+]?\d{1,4})?"
# Not part of a word, date, version, fraction, inequality, or list of digits, and no percentage.
_ALONE = rf"(?<![\w.,+\-/<>≤≥±])({_VALUE})(?!\w|[.,/]\d|\s?/\s?\d|-\d|\s{{0,2}}%)"
WHOLE_NUMBER = re.compile(rf"\s*[\"'(\[]?({_VALUE})[\"')\].,;]{{0,2}}\s*")
NUMBER = re.compile(_ALONE)
AFTER_DASH = re.compile(r"-\s{1,3}\Z")  # "Score - 0.5": a dash, or a sign
# The scale itself, as answers like to repeat it: "from -1 (document B) to 1 (document A)", "[-1, 1]".
_ONE = r"1(?:\.0{1,3})?(?!\d|\.\d)"
_NOTE = r"\s?(?:\([^()\n]{0,40}\))?"
_TO = r"\s?(?:,|;|to|and|through|\.\.\.?|-)\s?"
SCALE = re.compile(rf"(?<![\d.])(?:-{_ONE}{_NOTE}{_TO}\+?{_ONE}|\+?{_ONE}{_NOTE}{_TO}-{_ONE}){_NOTE}")
OUT_OF_ONE = re.compile(rf"(?<=\d)\s?(?:/|out of)\s?{_ONE}")
# "A: 0.8", "score of B = 0.3", "score_a: 0.5"
PER_DOCUMENT = re.compile(
    r"(?:\b[AB]|\b(?:score|rating|relevance|doc|document)\s?[-_]?\s?[abAB12])\b[\"')\]]{0,2}(?:'s)?"
    rf"(?:\s(?:score|rating|relevance)){{0,2}}\s?(?:[:=]|\b(?:is|gets|scores)\b)\s{{0,2}}[\"']?{_VALUE}(?![\w%])"
)
CUT_NUMBER = re.compile(r"(?:(?:\A|[\s:=(\"'\[{])[-+]?(?:0[.,]|\.)|\A\s*[-+])\s*\Z")

# --- what marks an answer as the answer
KEYS = ("score", "answer", "preference", "verdict", "rating", "result", "output", "judgment", "judgement")
KEYS += ("choice", "winner", "decision", "better")
_KEY = rf"(?:{'|'.join(KEYS)})"
_FINAL = r"(?P<final>\bfinal\s(?:[a-z]{1,12}\s){0,2})?"
_JOINT = r"[\"'})\]]{0,2}\s{0,2}(?:\bis\b|\bof\b|\bwould be\b|[:=?]|->|=>)?\s{0,3}[\"'({\[]{0,3}\s?"
MARKED_NUMBERS = (
    re.compile(rf"{_FINAL}\b{_KEY}\b{_JOINT}{_ALONE}", re.IGNORECASE),
    re.compile(rf"\b(?P<final>boxed)\s?\{{\s?{_ALONE}\s?\}}"),
    re.compile(rf"^[ \t\"'(\[]{{0,3}}{_ALONE}[ \t\"')\].,;:]{{0,4}}$", re.MULTILINE),
)

# --- letters
_DOCUMENT = r"(?:the\s)?(?:(?:document|doc|option|passage|text)\s)?"
_LETTER = r"((?-i:[ABT])|(?:a\s)?(?:tie|draw)\b)"
# Not the article of "A good match": the answer ends there, or says why.
_ENDS = r"(?!\s?[,&]\s?[ABT]\b)(?=\s*\Z|\s?[\"'.,;:!)\]}\n-]|\s(?:because|since|as|over|for|than)\b)"
_VERB = r"(?:choose|chose|pick|picked|prefer|select|selected|vote for|go with|favou?r)"
WHOLE_LETTER = re.compile(rf"\W*{_DOCUMENT}\W{{0,3}}([abt]|(?:a\s)?tie|tied|(?:a\s)?draw)\W*", re.IGNORECASE)
ONLY_LETTERS = re.compile(r"\W*[ABT](?:\W+(?:(?:and|or)\W+)?[ABT]|[ABT])+\W*")
BETTER = re.compile(
    rf"\b{_DOCUMENT}(?-i:\b([AB]))\s(?:(?:is|was)\s(?:[a-z]{{1,12}}ly\s|much\s|far\s)?(?:the\s)?"
    r"(?:better|best|winner|preferable|preferred|superior|more\s(?:relevant|helpful|useful|complete)"
    r"|(?:correct\s|right\s)?(?:answer|choice))|wins|answers\sthe\squery\s(?:much\s)?better)\b",
    re.IGNORECASE,
)
MARKED_LETTERS = (
    re.compile(
        rf"{_FINAL}\b(?:{_KEY}(?:\s(?:document|answer|one|match|choice))?|{_VERB})\b"
        rf"{_JOINT}{_DOCUMENT}[\"'(\[]{{0,2}}{_LETTER}{_ENDS}",
        re.IGNORECASE,
    ),
    re.compile(r"(?P<final>\[\[|\bboxed\s?\{)\s?(?:text\s?\{)?\s?([ABT])\s?(?:\]\]|\})"),
    re.compile(r"^[ \t\"'(\[]{0,3}([ABT])[ \t\"')\].,;:!]{0,4}$", re.MULTILINE),
    # "A. It says …", "B - the other is off topic"; of an enumeration both letters are found
    re.compile(r"(?:^|(?<=[.!?]\s))[\"'(\[]{0,2}([ABT])[\"')\]]{0,2}(?:[.:;)]\s|\s-\s)", re.MULTILINE),
    re.compile(r"\A\W{0,3}([ABT]),?\s(?:because|since)\b"),
    BETTER,
    re.compile(r"\b(?:it's|it is|is|are|call it)\s(?:a\s)?(tie|tied|draw)\b", re.IGNORECASE),
)
# --- yes or no
_YES = r"(yes|no)"
WHOLE_WORD = re.compile(rf"\W*{_YES}\W*", re.IGNORECASE)
MARKED_WORDS = (
    re.compile(rf"{_FINAL}\b(?:{_KEY}|relevant|relevance)\b{_JOINT}{_YES}{_ENDS}", re.IGNORECASE),
    re.compile(rf"\b(?P<final>boxed)\s?\{{\s?(?:text\s?\{{)?\s?{_YES}\b", re.IGNORECASE),
    re.compile(rf"^[ \t\"'(\[]{{0,3}}{_YES}[ \t\"')\].,;:!]{{0,4}}$", re.MULTILINE | re.IGNORECASE),
    re.compile(rf"\A\W{{0,3}}{_YES}\s?[,.;:!\n-]", re.IGNORECASE),  # "Yes, it says …"
)
# Before a marked letter, in its clause: "I don't think A is better", "If A is better, …"
UNSAID = re.compile(r"\b(?:not|never|neither|nor|cannot|hardly|if|unless|whether)\b|n't\b", re.IGNORECASE)
CLAUSE_END = re.compile(r"[.!?;\n]")
