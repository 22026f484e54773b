"""Texts that somebody else wrote, as bad as they come."""

from __future__ import annotations

from hypothesis import strategies as st

from anmi_ray.queries.words import normal

MEGABYTE = 1 << 20
HANGS_S = 20  # linear it is a second at most, quadratic minutes: a bound for any machine, not a speed
# Repeated to a megabyte, each has made some pattern of some program look back over all of it again and again.
PATTERNS = (
    *("#", ".", "a.", "a.a.a. ", "_", "a_", "aA", "A", "Aa", "E1", "-", "=", "\n", "# \n", "1.", "1.1 ", "`", "```\n"),
    *(" ", "\t", "a ", "a b ", "A B\n", "===\n", "a\n=\n", "E1234 ", "a_b ", "x.y "),
    *("\x00", "\x1b[31m", "\u202e", "((", "!"),
)

_words = st.sampled_from(
    "river slow The of leak ORA-00942 parse_reply Über straße os.path.join 42 İx RNA".split()  # noqa: SIM905
)
_marks = st.sampled_from(
    [" ", " ", " ", "\n", "\n\n", ". ", ", ", "\n# ", "\n===\n", "\n1.2 ", "[red]", "\x00", "\u200b", "…"]
)
texts = st.lists(st.tuples(_words, _marks), max_size=40).map(lambda parts: "".join(a + b for a, b in parts))
documents = st.tuples(st.one_of(st.just(""), texts, st.text(max_size=20)), st.one_of(texts, st.text(max_size=60)))


def stands_in(query: str, text: str) -> bool:
    """Whether the words of `query` stand in `text` one after the other, whatever is between them."""
    return f" {normal(query)} " in f" {normal(text)} "
