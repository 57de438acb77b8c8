"""Requests in, text out, given an Executor."""

from quire.engine.adapters import AdapterCard, AdapterShelf, AdapterSource
from quire.engine.async_engine import AsyncEngine, Deltas, MakeThread
from quire.engine.begun import Begun, ChatPrompt
from quire.engine.chat_template import Message
from quire.engine.decision_log import Noted
from quire.engine.driver import Driver
from quire.engine.engine import Engine
from quire.engine.input_processor import InputProcessor
from quire.engine.observed import Observed
from quire.engine.outputs import (
    CompletionOutput,
    Delta,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    Logprob,
    RequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
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
from quire.scheduling import Session

__all__ = [
    "AdapterCard",
    "AdapterShelf",
    "AdapterSource",
    "AsyncEngine",
    "Begun",
    "ChatPrompt",
    "CompletionOutput",
    "Delta",
    "Deltas",
    "Driver",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "Engine",
    "EngineThread",
    "InputProcessor",
    "Logprob",
    "MakeThread",
    "Message",
    "Noted",
    "Observed",
    "Percentiles",
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
    "begin_profile",
    "end_profile",
    "load_tokenizer",
    "tells_types",
]
