"""The words of this project are those of its field: `scripts/words.py` finds none of the old private ones."""

from collections import Counter

import words

PROSE_IS_LIMITED = True
"""Whether more than `words.PROSE_LIMIT` old words in docstrings, comments and Markdown fail this test."""


def test_old_words_are_gone(capsys):
    found = list(words.occurrences(list(words.SEARCHED)))
    own = [each for each in found if each.kind in ("names", "text") and each.file.startswith("src/")]
    prose = Counter(each.file for each in found if each.kind == "prose")
    with capsys.disabled():
        print(f"\nold words in prose: {prose.total()} in {len(prose)} files (wanted: fewer than {words.PROSE_LIMIT})")
    assert not own, "\n".join(f"{each.file}:{each.line}: {each.word}: {each.text[:100]}" for each in own)
    assert not PROSE_IS_LIMITED or prose.total() < words.PROSE_LIMIT, prose.most_common()
