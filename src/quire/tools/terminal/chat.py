"""A chat: what is typed goes to the model or is a command, and what comes back is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quire.core.errors import QuireError
from quire.tools.terminal.commands import Commands, Outcome
from quire.tools.terminal.conversation import ChatHistory, ChatTurn
from quire.tools.terminal.models import ChatModel, ContextFullError, Ending
from quire.tools.terminal.screen import Screen

_LEAST_ROOM = 256  # tokens for an answer, where the model reads many times more


class Chat:
    """A conversation with ``model``, shown on ``screen``. Ctrl-C stops an answer, not the chat."""

    def __init__(
        self, model: ChatModel, screen: Screen, params: Mapping[str, Any], system: str = ""
    ) -> None:
        self._model = model
        self._screen = screen
        self.conversation = ChatHistory(system)
        self.params = dict(params)
        self._commands = Commands(self.conversation, self.params, screen)

    def run(self) -> None:
        """Chat until the input ends or a command ends it."""
        for text in self._inputs():
            try:
                if self._take(text) == "leave":
                    return
            except KeyboardInterrupt:  # between an answer and what is told of it, or in a command
                self._screen.note("stopped")

    def _take(self, text: str) -> Outcome:
        outcome: Outcome = "answer"
        command = self._commands.find(text)
        if command is None:
            self.conversation.turns.append(ChatTurn(text))
        else:
            outcome = self._commands.run(command, text)
        if outcome == "answer":
            self._answer()
        return outcome

    def _inputs(self) -> Iterator[str]:
        while True:
            try:
                text = self._screen.read()
            except EOFError:
                return
            except KeyboardInterrupt:
                self._screen.note("Ctrl-D or /exit leaves")
                continue
            if text.strip():
                yield text

    def _answer(self) -> None:
        """Answer the last turn. If that is refused, everything is as it was before the turn."""
        turns, before = self.conversation.turns, list(self.conversation.turns)
        turn, answered = turns[-1], turns[-1].answer
        turn.answer = None
        try:
            dropped = self._make_room()
            ending = None
            while ending is None:
                try:
                    ending = self._stream(turn)
                except ContextFullError:
                    if not self.conversation.drop_oldest():
                        raise
                    dropped += 1
        except (QuireError, KeyboardInterrupt) as error:  # an interrupt before there was an answer
            turn.answer = answered
            turns[:] = before if answered is not None else before[:-1]
            if isinstance(error, QuireError):
                self._screen.error(str(error))
            else:
                self._screen.note("stopped")
            return
        self._tell(ending, dropped)

    def _make_room(self) -> int:
        """Drop the oldest turns until there is room for an answer; how many were dropped."""
        dropped = 0
        while (room := self._model.room(self.conversation.messages())) is not None:
            if room >= self._room_wanted() or not self.conversation.drop_oldest():
                break
            dropped += 1
        return dropped

    def _room_wanted(self) -> int:
        longest = self._model.max_model_len or 0
        return min(self.params.get("max_tokens") or _LEAST_ROOM, longest // 8)

    def _stream(self, turn: ChatTurn) -> Ending:
        answer = self._model.answer(self.conversation.messages(), self.params)
        ending = Ending()
        try:
            with self._screen.answering() as shown:
                for piece in answer:
                    turn.answer = (turn.answer or "") + piece.text
                    shown.add(piece)
                    ending = piece.ending or ending
        except KeyboardInterrupt:
            turn.answer = turn.answer or ""
            ending = Ending("interrupt")
        finally:
            answer.close()
        return ending

    def _tell(self, ending: Ending, dropped: int) -> None:
        """Print the figures of an answer."""
        longest = self._model.max_model_len
        used = ending.prompt_tokens + ending.output_tokens
        if dropped:
            turns = "turn was" if dropped == 1 else f"{dropped} turns were"
            self._screen.note(f"the context is full: the oldest {turns} dropped")
        if ending.finish_reason == "interrupt":
            self._screen.note("stopped")
        elif ending.finish_reason == "length":
            full = longest is not None and used >= longest
            why = f"the model's {longest:,} tokens are full" if full else "max_tokens is reached"
            self._screen.note(f"cut: {why}")
