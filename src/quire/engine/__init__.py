"""Requests in, text out, given an Executor."""

from quire.engine.adapters import AdapterCard, AdapterShelf, AdapterSource
from quire.engine.async_engine import AsyncEngine, Deltas, MakeThread
from quire.engine.beams import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from quire.engine.begun import Begun, ChatPrompt
from quire.engine.chat_template import Message
from quire.engine.decision_log import Noted
from quire.engine.driver import Driver
from quire.engine.engine import Engine
from quire.engine.figures import Counter, Gauge, Metric, figures_of
from quire.engine.for_transformers import for_transformers
from quire.engine.input_processor import InputProcessor
from quire.engine.lora_request import Adapters, LoRARequest, NamedAdapters
from quire.engine.many import (
    as_list,
    each_of,
    naming,
    refuse_all_but_none,
    tell_shortened,
    with_options,
)
from quire.engine.observed import Observed
from quire.engine.outputs import (
    CompletionOutput,
    Delta,
    Logprob,
    RequestOutput,
)
from quire.engine.part_times import StepParts
from quire.engine.prepared import PreparedParams
from quire.engine.profiling import begin_profile, end_profile
from quire.engine.prompt_form import PromptForm
from quire.engine.prompts import Prompt, as_dict
from quire.engine.recent import Percentiles, Rates
from quire.engine.recorder import RequestRecorder
from quire.engine.scoring import Scoring
from quire.engine.session_manager import SessionManager
from quire.engine.step_recorder import StepRecorder
from quire.engine.streaming_session import StreamingSession
from quire.engine.thread import EngineThread
from quire.engine.tokenizer import Tokenizer, load_tokenizer, tells_types
from quire.engine.vector_outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
    chances,
)
from quire.scheduling import Session

__all__ = [
    "AdapterCard",
    "AdapterShelf",
    "AdapterSource",
    "Adapters",
    "AsyncEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "Begun",
    "ChatPrompt",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "Counter",
    "Delta",
    "Deltas",
    "Driver",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "Engine",
    "EngineThread",
    "Gauge",
    "InputProcessor",
    "LoRARequest",
    "Logprob",
    "MakeThread",
    "Message",
    "Metric",
    "NamedAdapters",
    "Noted",
    "Observed",
    "Percentiles",
    "PoolingOutput",
    "PoolingRequestOutput",
    "PreparedParams",
    "Prompt",
    "PromptForm",
    "Rates",
    "RequestOutput",
    "RequestRecorder",
    "Scoring",
    "ScoringOutput",
    "ScoringRequestOutput",
    "Session",
    "SessionManager",
    "StepParts",
    "StepRecorder",
    "StreamingSession",
    "Tokenizer",
    "as_dict",
    "as_list",
    "begin_profile",
    "chances",
    "each_of",
    "end_profile",
    "figures_of",
    "for_transformers",
    "load_tokenizer",
    "naming",
    "refuse_all_but_none",
    "tell_shortened",
    "tells_types",
    "with_options",
]
