"""A beam search as vLLM's ``LLM.beam_search`` has it: what is asked for, and what is found."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.engine.outputs import CompletionOutput, RequestOutput, TokenLogprobTable
from quire.text.params import SamplingParams, StructuredOutputs


@dataclass(frozen=True)
class BeamSearchParams:
    """What a search is to find; its temperature has no effect on the likeliest texts but at 0."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    structured_outputs: StructuredOutputs | None = None
    skip_special_tokens: bool = True

    def as_sampling(self) -> SamplingParams:
        """The same as SamplingParams. RequestError for what cannot be."""
        return SamplingParams(
            use_beam_search=True,
            n=self.beam_width,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            temperature=self.temperature,
            length_penalty=self.length_penalty,
            include_stop_str_in_output=self.include_stop_str_in_output,
            structured_outputs=self.structured_outputs,
            skip_special_tokens=self.skip_special_tokens,
        )


@dataclass
class BeamSearchSequence:
    """A text that was found: the prompt and what follows it."""

    tokens: list[int]
    text: str | None = None
    cum_logprob: float = 0.0
    logprobs: list[TokenLogprobTable] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    @classmethod
    def of(cls, request: RequestOutput, found: CompletionOutput) -> BeamSearchSequence:
        """One of a request's outputs. Its text has the prompt's before it, if that was a text."""
        return cls(
            [*request.prompt_token_ids, *found.token_ids],
            (request.prompt or "") + found.text,
            found.cumulative_logprob or 0.0,
            found.logprobs or [],
            found.finish_reason,
            found.stop_reason,
        )


@dataclass
class BeamSearchOutput:
    """What was found for a prompt, the best first."""

    sequences: list[BeamSearchSequence]
    error: str | None = None

    @classmethod
    def of(cls, request: RequestOutput) -> BeamSearchOutput:
        found = [BeamSearchSequence.of(request, output) for output in request.outputs]
        return cls([] if request.error else found, request.error)
