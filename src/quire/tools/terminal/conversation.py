"""What has been said, and what of it is dropped when it no longer fits."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from quire.core.errors import ConfigError

Message = dict[str, str]


@dataclass
class ChatTurn:
    """What the user said, and the answer; None: there is none yet."""

    said: str
    answer: str | None = None


@dataclass
class ChatHistory:
    """Turns after a system prompt, the oldest first."""

    system: str = ""
    turns: list[ChatTurn] = field(default_factory=list)
    _saved_to: set[Path] = field(default_factory=set)

    def messages(self) -> list[Message]:
        """The messages for a chat template or OpenAI's API."""
        found = [{"role": "system", "content": self.system}] if self.system else []
        for turn in self.turns:
            found.append({"role": "user", "content": turn.said})
            if turn.answer is not None:
                found.append({"role": "assistant", "content": turn.answer})
        return found

    def drop_oldest(self) -> bool:
        """Forget the oldest turn, but never the one that waits for its answer."""
        if len(self.turns) < 2:
            return False
        del self.turns[0]
        return True

    def save(self, path: Path) -> None:
        """Save as JSON messages if the name ends so, else as Markdown.

        Raises:
            ConfigError: it cannot be written, or the file exists and is not from this conversation.
        """
        if path.exists() and path not in self._saved_to:
            raise ConfigError(f"{path} exists already: choose another name")
        json_wanted = path.suffix == ".json"
        text = json.dumps(self.messages(), indent=1, ensure_ascii=False) if json_wanted else ""
        try:
            path.write_text((text or self._markdown()) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
        self._saved_to.add(path)

    def _markdown(self) -> str:
        messages = self.messages()
        return "\n\n".join(f"**{one['role']}**\n\n{one['content']}" for one in messages)
