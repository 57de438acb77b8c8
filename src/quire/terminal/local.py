"""A model in this process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from quire.terminal.conversation import Message
from quire.terminal.models import Answer, Ending, Piece

if TYPE_CHECKING:
    from quire.llm import LLM

_REQUEST = "chat"


class LocalModel:
    """An ``LLM`` that nothing else uses."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self.name = llm.capacity.model_name
        self.max_model_len = llm.capacity.max_model_len

    def room(self, messages: Sequence[Message]) -> int | None:
        """See ``ChatModel.room``."""
        if self.max_model_len is None:
            return None
        tokenizer = self._llm.engine.input_processor.tokenizer
        return self.max_model_len - tokenizer.count(tokenizer.apply_chat_template(messages, {}))

    def answer(self, messages: Sequence[Message], params: Mapping[str, Any]) -> Answer:
        """See ``ChatModel.answer``."""
        engine, chosen = self._llm.engine, self._llm.default_sampling_params(**params)
        engine.add_request(_REQUEST, engine.input_processor.chat_prompt(messages), chosen)
        try:
            with _interrupts_held_back() as let_through:
                while engine.has_work:
                    for delta in engine.step():
                        if delta.failure is not None:
                            raise delta.failure
                        ending = None
                        if delta.final is not None:
                            metrics = delta.final.metrics
                            tokens = metrics.num_prompt_tokens, metrics.num_output_tokens
                            ending = Ending(delta.finish_reason, *tokens)
                        yield Piece(delta.text, ending=ending)
                    let_through()
        finally:
            engine.abort(_REQUEST)


@contextmanager
def _interrupts_held_back() -> Iterator[Callable[[], None]]:
    """Ctrl-C has its effect where the function is called that this gives: no step is torn."""
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True

    def let_through() -> None:
        if pressed:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # which gets no signals
        yield let_through
        return
    before = signal.signal(signal.SIGINT, press)
    try:
        yield let_through
    finally:
        signal.signal(signal.SIGINT, before)
