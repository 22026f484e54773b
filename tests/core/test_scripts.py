from __future__ import annotations

import pytest

from anmi_ray.core.scripts import other_words


@pytest.mark.parametrize(
    ("text", "rest", "words"),
    [
        ("plain words, café and ½ ™", "plain words, café and ½ ™", []),
        ("東京タワー2024 is tall", " 2024 is tall", ["東", "京", "東京", "京タ", "タワ", "ワー"]),
        ("ﾀﾜｰ", " ", ["タワ", "ワー"]),  # half width
        ("ＰＹＴＨＯＮ", "PYTHON", []),  # full width
        ("か", " ", ["か"]),
        ("물을", " ", ["물", "을", "물을"]),
        ("น้ำ", " ", ["น้", "้ํ", "ํา"]),
        ("हिन्दी में।", "   ।", ["हिन्दी", "में"]),
    ],
)
def test_words_of_scripts_that_a_word_pattern_does_not_find(text: str, rest: str, words: list[str]) -> None:
    assert other_words(text) == (rest, words)
