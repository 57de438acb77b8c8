"""What every request must be answered with, found without any server: by plain recursion."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from quire.core.protocol import Request, SoftCut
from quire.text.params import SamplingParams
from quire.text.tokenizer import Tokenizer
from support.fake_model import EOS, FULL, expected_outputs, expected_turn
from world.script import Ask


class Oracle:
    """The texts of the fake model. Every answer that is one must be this one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._outputs = lru_cache(maxsize=1000)(self._find)

    def texts(self, ask: Ask) -> list[str]:
        """Of all choices of one copy of the prompt."""
        outputs = self._outputs(ask.prompt, ask.max_tokens, ask.seed, ask.n, ask.beams)
        return [self._stopped(output, ask.stop) for output in outputs]

    def turn(
        self, history: Sequence[int], max_tokens: int, seed: int, cuts: Sequence[SoftCut]
    ) -> list[int]:
        """The tokens that a session's turn generates."""
        params = SamplingParams(max_tokens=max_tokens, seed=seed)
        return expected_turn(history, _request((), params, max_tokens), FULL, cuts)

    def text(self, token_ids: Sequence[int]) -> str:
        kept = [token for token in token_ids if token != EOS]
        return self._tokenizer.decode(kept)

    def _find(
        self, prompt: tuple[int, ...], max_tokens: int, seed: int, n: int, beams: int
    ) -> list[list[int]]:
        if beams:
            params = SamplingParams(use_beam_search=True, beam_width=beams, max_tokens=max_tokens)
        else:
            params = SamplingParams(n=n, max_tokens=max_tokens, seed=seed)
        return expected_outputs(_request(prompt, params, max_tokens, seed))

    def _stopped(self, output: Sequence[int], stop: Sequence[str]) -> str:
        """The text up to where it first holds a whole stop string, sign by sign."""
        text = self.text(output)
        for end in range(1, len(text) + 1):
            found = [one for one in stop if text[:end].endswith(one)]
            if found:
                return text[: end - max(map(len, found))]
        return text


def _request(
    prompt: tuple[int, ...], params: SamplingParams, max_tokens: int, seed: int | None = None
) -> Request:
    seed = params.seed if seed is None else seed
    assert seed is not None
    return Request("", prompt, params, max_tokens, seed, eos_token_ids=frozenset([EOS]))
