"""Why tests of llama.cpp's server fail against ours: what is not here, or is here otherwise."""

from __future__ import annotations

from collections.abc import Mapping

NOT_RUN: Mapping[str, str] = {
    "test_compat_gcp": "Vertex's addresses are not here",
    "test_kv_keep_only_active": "it reads llama.cpp's log",
    "test_lora": "it fetches an adapter from a hub",
    "test_mcp_servers": "nothing is run here for a request",
    "test_proxy": "nothing is fetched here for a page",
    "test_router": "one server serves one model",
    "test_sleep": "a model stays as long as its server",
    "test_slot_save": "places have nothing of their own here",
    "test_speculative": "it fetches a draft model from a hub",
    "test_stream": "one server serves one model",
    "test_tools_builtin": "nothing is run here for a request",
    "test_vision_api": "texts come in and go out, nothing else",
}
"""Files that test nothing which is here."""

# The beginnings of names, as pytest has them, by file.
_REASONS: Mapping[str, Mapping[str, str]] = {
    "the demonstration model writes other texts, in other tokens": {
        "test_basic": "load_split_model",
        "test_chat_completion": """chat_completion[ chat_completion_stream[ cached_tokens
            chat_completion_cached_tokens chat_completion_with_openai_library""",
        "test_compat_oai_responses": "responses_with_openai_library",
        "test_completion": """completion[ completion_stream[ completion_with_openai_library
            completion_stream_with_openai_library completion_prompt_cache completion_unified""",
        "test_ctx_shift": "ctx_shift_disabled",
        "test_embedding": "embedding_usage",
        "test_infill": "infill_with",
        "test_rerank": "rerank_usage rerank_tei_format rerank",
        "test_tokenize": "tokenize_with_bos",
    },
    "a prompt is told by /apply-template, and not beside an answer (__verbose)": {
        "test_chat_completion": """chat_template chat_template_assistant_prefill
            chat_template_continue_final_message_vllm_compat verbose_debug""",
    },
    "templates are files or texts, and have no names of their own": {
        "test_chat_completion": "apply_chat_template",
    },
    "a stream's first chunk has an empty text, as OpenAI's": {
        "test_chat_completion": "chat_completion_with_timings_per_token logprobs_stream",
        "test_tool_call": "completion_without_tool_call_fast",
    },
    "how far a prompt has been computed is told by steps, and only by chats and completions": {
        "test_chat_completion": "return_progress",
        "test_compat_oai_responses": "responses_stream_with_llama_telemetry",
        "test_metrics": "metrics_timings_on_prompt_progress",
    },
    "texts come in and go out, nothing else": {
        "test_compat_anthropic": """anthropic_tool_result_with_image anthropic_vision""",
        "test_security": "local_media_file[../../../tools",
    },
    "where tokens are drawn is no matter of a request": {
        "test_completion": "n_probs_post_backend_sampling",
    },
    "metrics have vLLM's names, and are always there": {
        "test_metrics": """metrics_disabled metrics_prometheus_format metrics_prompt_processed
            metrics_predicted_total metrics_embedding_prompt""",
    },
    "/slots and the page are always there": {
        "test_basic": "server_slots no_ui",
        "test_security": "access_static_assets",
    },
    "one server listens at one address, for one model of one name, whatever its files": {
        "test_basic": "server_multiple_addresses server_props server_model_aliases",
    },
    "a conversation has a message, and its turns alternate": {
        "test_chat_completion": "invalid_chat_completion_req[messages7]",
        "test_compat_anthropic": "anthropic_empty_messages",
    },
    "all of an answer is told": {
        "test_completion": "completion_response_fields",
    },
    "a request without a seed draws anew": {
        "test_completion": "completion_stream_vs_non_stream",
    },
    "texts are never cut to fit": {
        "test_ctx_shift": "ctx_shift_enabled",
    },
    "vectors are of whole texts, which are not empty, and errors have our own words": {
        "test_embedding": """embedding_pooling_none embedding_mixed_input[-False]
            embedding_error_prompt_too_long""",
    },
    "a browser that asks whether a page may is answered with 204": {
        "test_security": "cors_options cors_origins",
    },
    "nothing is fetched here for a page": {
        "test_security": "cors_proxy",
    },
    "a template is told of thinking what a request or the server says, and else nothing": {
        "test_template": "reasoning[",
    },
    "a template is told no date, and no tools by names of its own": {
        "test_template": "date_inside_prompt",
    },
    "ends are gone past, and not forbidden": {
        "test_ignore_eos": "ignore_eos_populates",
    },
}


def reason_of(name: str) -> str | None:
    """Why a test, ``file::test[case]``, fails; None: nobody knows."""
    file, _, test = name.partition("::")
    for reason, files in _REASONS.items():
        if test.removeprefix("test_").startswith(tuple(files.get(file, " ").split()) or " "):
            return reason
    return None
