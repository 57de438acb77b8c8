"""Log-probabilities as they are kept, and as they are seen."""

from __future__ import annotations

import pickle

from quire.core.protocol import TokenLogprobs
from quire.engine.outputs import Logprob, TokenLogprobTable
from quire.text.text_tokens import TextToken
from quire.text.tokenizer import TokenTexts

FOUND = TokenLogprobs(-2.0, 3, ((7, -0.5), (4, -1.0), (9, -2.0)))


def test_a_table_is_made_when_it_is_looked_at() -> None:
    asked: list[int] = []

    def bytes_of(token_id: int) -> bytes:
        asked.append(token_id)
        return chr(token_id + 90).encode()

    own = TokenTexts(bytes_of, frozenset())
    table = TokenLogprobTable(FOUND, TextToken(own, 9))
    assert not asked
    assert table.chosen == Logprob(-2.0, 3, "c") and asked == [9]
    whole = {9: table.chosen, 7: Logprob(-0.5, 1, "a"), 4: Logprob(-1.0, 2, "^")}
    assert table == whole and list(table) == [9, 7, 4] and len(table) == 3
    assert list(table.values()) == list(whole.values()) and table[4] == whole[4]
    assert 5 not in table and repr(table) == repr(whole)
    assert len(TokenLogprobTable(FOUND, TextToken(own, 1))) == 4  # it is none of the likeliest


def test_a_table_travels_as_a_dict() -> None:
    own = TokenTexts(lambda token_id: str(token_id).encode(), frozenset())
    table = TokenLogprobTable(FOUND, TextToken(own, 9))
    assert pickle.loads(pickle.dumps(table)) == dict(table.items())
