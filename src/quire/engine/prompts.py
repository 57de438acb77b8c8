"""What a caller may give as a prompt, and what is ready to run: checked, texts made tokens of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from quire.core.errors import ConfigError, RequestError, shown
from quire.core.protocol import PoolingParams, Request, SamplingParams
from quire.text.stop_strings import StopAutomaton

Prompt = str | Sequence[int] | Mapping[str, Any]
"""A text, token ids, {"prompt": text} or {"prompt_token_ids": ids}.

A dict may also hold "cache_salt", a text: only requests with the same salt share a prefix cache;
"adapter", the name of one that changes the model's weights;
"priority", an integer: under the priority and fair policies, the lower, the sooner; "client", a
text: under the fair policy, clients share; "second", a text: the prompt is a pair for a model that
judges such, cut to "truncate_prompt_tokens" where that is given; "truncate_max_tokens": true lowers
a max_tokens that is above what max_model_len leaves, where else the request is refused; and, for a
server that decodes only, "remote_prefill": address and port of an engine that has computed the
prompt; "origin", an ``Origin``; and "keep", see ``Request``.
"""

_PROMPT_KEYS = {
    *("prompt", "prompt_token_ids", "cache_salt", "adapter", "priority", "client"),
    *("second", "truncate_prompt_tokens", "truncate_max_tokens", "remote_prefill", "origin"),
    "keep",
}
_LONGEST_CLIENT = 256  # characters


def as_dict(prompt: Prompt) -> Mapping[str, Any]:
    """The same, to which options can be added."""
    if isinstance(prompt, Mapping):
        return prompt
    return {"prompt" if isinstance(prompt, str) else "prompt_token_ids": prompt}


def given_of(prompt: Prompt) -> str | Sequence[int]:
    """What a prompt is made of, which a dict names."""
    if not isinstance(prompt, Mapping):
        return prompt
    known = [key for key in ("prompt_token_ids", "prompt") if prompt.get(key) is not None]
    if len(known) != 1 or set(prompt) - _PROMPT_KEYS:
        raise RequestError(
            'a prompt given as a dict must hold "prompt" or "prompt_token_ids", and may '
            'hold "cache_salt", "adapter", "priority", "client" and "truncate_max_tokens"; got '
            "the keys "
            f"{shown(list(prompt))}",
            "prompt",
        )
    return cast("str | Sequence[int]", prompt[known[0]])


def chat_variables(
    chat_template: str | None = None,
    chat_template_content_format: str = "auto",
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a chat template gets beside the messages; see ``LLM.chat``."""
    if continue_final_message and add_generation_prompt:
        raise RequestError(
            "continue_final_message needs add_generation_prompt=False", "continue_final_message"
        )
    if chat_template_content_format not in ("auto", "string"):
        raise ConfigError("chat_template_content_format may only be auto or string")
    return {
        **(chat_template_kwargs or {}),
        **({"tools": list(tools)} if tools else {}),
        **({} if chat_template is None else {"chat_template": chat_template}),
        "add_generation_prompt": add_generation_prompt,
        "continue_final_message": continue_final_message,
    }


def check_client(client: object) -> None:
    """RequestError unless it is a short text."""
    if not isinstance(client, str):
        raise RequestError(f"client must be a text, got {shown(client)}", "client")
    if len(client) > _LONGEST_CLIENT:
        raise RequestError(
            f"client must have at most {_LONGEST_CLIENT} characters, got {len(client)}", "client"
        )


@dataclass(frozen=True)
class PreparedParams:
    """SamplingParams that this model can serve, and what their texts come to."""

    params: SamplingParams
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    stops: StopAutomaton | None = None
    rules: object = None
    prediction: tuple[int, ...] = ()
    pooling: PoolingParams | None = None  # all of it filled in

    @property
    def max_tokens(self) -> int | None:
        """See ``SamplingParams``; 0: only the prompt counts."""
        return self.params.max_tokens if self.pooling is None else 0

    @property
    def least_output(self) -> int:
        """Tokens for which there must be room after a prompt."""
        return 0 if self.max_tokens == 0 else 1


@dataclass(frozen=True)
class PreparedRequest:
    """A Request and the text it was made from, if it was.

    context: the tokens that its output goes on from, or the last of them.
    stops: its stop strings, for all of its outputs; None without any.
    """

    request: Request
    prompt: str | None
    context: Sequence[int]
    stops: StopAutomaton | None
