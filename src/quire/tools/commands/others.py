"""What start scripts of vLLM, llama.cpp and Ollama say, and what becomes of it here.

Every flag of ``vllm serve`` and ``llama-server`` is in one of four places, and of Ollama every
variable: it works as it is; it asks for what is so anyway; it is written otherwise here; or it
cannot be, for a reason. ``tests/references`` compares the lists with the programs' sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

from quire.engine.config.neutral import ANY, COMMON, RARE, Neutral


class Program(NamedTuple):
    """Another server's flags and variables, by their names, separated by spaces.

    A * at the end stands for any rest of a name; a whole name counts before it.

    works: names that are the same here.
    same: names that change nothing, by the reason; after = the only value for which that holds.
    instead: names that are written otherwise here, by what to write.
    cannot: names that cannot be had, by the reason.
    """

    name: str
    works: str
    same: Mapping[str, str]
    instead: Mapping[str, str]
    cannot: Mapping[str, str]


class FlagAnswer(NamedTuple):
    """What becomes of a name, in a sentence's end; what it says is lost unless ``same``."""

    program: str
    what: str
    same: bool = False


_DRAFTS = "--speculative-config.num_speculative_tokens N"
_DRAFT_MODEL = "--speculative-config.method draft --speculative-config.model NAME"
_METHOD = "--speculative-config.method with auto, ngram, suffix or draft"
_BY_ITSELF = "--speculative-config alone: the engine adapts how many tokens it drafts"
_DEFAULT = "--override-generation-config.{} X"
_REPLICAS = "quire deploy MODEL --replicas N"
_TEXT_ONLY = "models read text only"
_GUIDED = "a request brings its own (structured_outputs, response_format)"
_NO_SAMPLER = "there is no such sampler, and the order of those that there are is fixed"
_SPLIT = "a device computes all layers or none"
_ROPE = "a model's own files say how positions turn; --hf-overrides can say otherwise"

SERVER = (
    Neutral("max_log_len", "the text of requests and answers is never logged", (ANY,)),
    Neutral("enable_log_outputs", "the text of requests and answers is never logged", (False,)),
    Neutral("enable_log_deltas", "the text of requests and answers is never logged", (True, False)),
    Neutral("log_error_stack", "errors of the server itself are logged with it", (True, False)),
    Neutral("enable_force_include_usage", "a stream has its usage where stream_options ask for it",
            (False,)),
    Neutral("enable_per_request_metrics", "a request asks for them itself (include_metrics)",
            (True, False)),
    Neutral("return_tokens_as_token_ids", "a request asks for it itself", (False,)),
    Neutral("enable_tokenizer_info_endpoint", "there is no /tokenizer_info", (False,)),
    Neutral("h11_max_incomplete_event_size", "the head of a request may have 64 KiB", (ANY,)),
    Neutral("h11_max_header_count", "the head of a request may have 64 KiB", (ANY,)),
    Neutral("enable_ssl_refresh", "certificates are read once", (False,)),
    Neutral("ssl_ciphers", "Python's own are used", ()),
    Neutral("middleware", "code of others does not run in the server", ()),
    Neutral("tool_parser_plugin", "code of others does not run in the server", ()),
    Neutral("tool_server", "tools are run by clients", ()),
    Neutral("tool_strict_level", "a tool's own strict decides", ("auto",)),
    Neutral("trust_request_mm_kwargs", _TEXT_ONLY, (False,)),
    Neutral("cohere_is_reasoning_model", "the template says whether a model reasons",
            (True, False)),
    Neutral("cohere_format", "the template says how prompts are written", (ANY,)),
    Neutral("anthropic_disabled_thinking_effort", "the template says how thinking is turned off",
            ("auto",)),
    Neutral("enable_scale_out", "there is no such endpoint", (False,)),
    Neutral("enable_flash_late_interaction", "late interaction is not served", (True, False)),
    Neutral("fingerprint_mode", "the fingerprint names model, weights and version", (ANY,)),
    Neutral("fingerprint_value", "the fingerprint names model, weights and version", ()),
    Neutral("uds", "the server listens on TCP", ()),
    Neutral("grpc", "the server speaks HTTP", (False,)),
    Neutral("grpc_port", "the server speaks HTTP", ()),
    *(Neutral(f"data_parallel_supervisor_{name}" if name == "port" else f"dp_supervisor_{name}",
              "one engine serves; quire deploy MODEL --replicas N starts N of them", (ANY,))
      for name in ("port", "probe_failure_threshold", "probe_interval_s", "probe_timeout_s")),
)  # fmt: skip
"""Those of ``vllm serve`` that are neither of its ``LLM`` nor of its ``EngineArgs``."""

VLLM = Program(
    "vLLM",
    works="""--model --host --port --api-key --served-model-name --chat-template --root-path
        --ssl-keyfile --ssl-certfile --ssl-ca-certs --ssl-cert-reqs --allow-credentials
        --allowed-origins --allowed-methods --allowed-headers --config --revision --download-dir
        --hf-overrides --tokenizer --max-model-len --max-num-seqs --max-num-batched-tokens
        --block-size --dtype --kv-cache-dtype --kv-cache-memory-bytes --gpu-memory-utilization
        --enforce-eager --enable-prefix-caching --swap-space --seed --scheduling-policy
        --async-scheduling --generation-config --override-generation-config --tool-call-parser
        --reasoning-parser --enable-auto-tool-choice --exclude-tools-when-tool-choice-none
        --enable-prompt-tokens-details --max-logprobs --stream-interval --sse-keep-alive-interval
        --default-chat-template-kwargs --trust-request-chat-template --tensor-parallel-size -tp
        --nnodes --node-rank --master-addr --master-port --headless --distributed-timeout-seconds
        --distributed-executor-backend --quantization -q --speculative-config --pooler-config
        --enable-lora --lora-modules --max-loras --max-lora-rank --max-cpu-loras
        --kv-transfer-config --kv-events-config --kv-offloading-size --otlp-traces-endpoint
        --uvicorn-log-level --disable-uvicorn-access-log --disable-access-log-for-endpoints
        --disable-fastapi-docs --shutdown-timeout --device VLLM_API_KEY""",
    same={
        "statistics are sent to nobody": "VLLM_NO_USAGE_STATS VLLM_DO_NOT_TRACK VLLM_USAGE_*",
        "there is one engine": "VLLM_USE_V1 VLLM_ENABLE_V1_MULTIPROCESSING",
        "one process serves": "VLLM_WORKER_MULTIPROC_METHOD",
        "the same request always gets the same bits": "VLLM_BATCH_INVARIANT",
        "responses are kept unless a request says otherwise": "VLLM_ENABLE_RESPONSES_API_STORE",
        "unknown names pass where one model is served": "VLLM_SKIP_MODEL_NAME_VALIDATION",
        "logits that are not numbers end their request": """VLLM_RAISE_ON_LOGIT_NANS
            VLLM_COMPUTE_NANS_IN_LOGITS""",
        "kernels, and when they are compiled, are Quire's own": """VLLM_USE_* VLLM_CPU_*
            VLLM_CUDA* VLLM_GPU_* VLLM_FLASH* VLLM_ATTENTION_BACKEND VLLM_TRITON_* VLLM_DEEP*
            VLLM_MARLIN_* VLLM_HUMMING_* VLLM_MLA_* VLLM_MOE_* VLLM_B12X_* VLLM_BLOCKSCALE_*
            VLLM_MX* VLLM_GDN_* VLLM_SSM_* VLLM_SPARSE_* VLLM_KIMI_* VLLM_ENABLE_* VLLM_DISABLE*
            VLLM_COMPILE_* VLLM_FORCE_* VLLM_PATTERN_* VLLM_TUNED_* VLLM_SHARED_* VLLM_MULTI_*
            VLLM_FLOAT32_* VLLM_HAS_* VLLM_DBO_* VLLM_DCP_* VLLM_LORA_DISABLE_PDL
            VLLM_LORA_ENABLE_DUAL_STREAM VLLM_MAX_TOKENS_PER_EXPERT_* VLLM_ADAPTIVE_*
            VLLM_ALLOW_CHUNKED_* VLLM_MEMORY_* VLLM_KV_CACHE_LAYOUT VLLM_ZENTORCH_* VLLM_WSL2_*
            VLLM_FASTSAFETENSORS_* VLLM_XGRAMMAR_* VLLM_V1_*""",
        "ranks meet by sockets and shared memory": """VLLM_NCCL_* VLLM_ALLREDUCE_* VLLM_RPC_*
            VLLM_MQ_* VLLM_RINGBUFFER_* VLLM_MSGPACK_* VLLM_DISTRIBUTED_* VLLM_SKIP_P2P_CHECK
            VLLM_OBJECT_* VLLM_P2P_* VLLM_NIC_* VLLM_REPLICATE_EMBED VLLM_WEIGHT_OFFLOADING_*
            VLLM_KV_OFFLOAD_*""",
        "they are of its builds and tests": """VLLM_BUILD_* VLLM_DOCKER_* VLLM_IMAGE_TAG
            VLLM_MAIN_CUDA_VERSION VLLM_TARGET_DEVICE VLLM_TEST_* VLLM_SKIP_* VLLM_RANDOMIZE_*
            VLLM_DEBUG_* VLLM_GC_DEBUG VLLM_TRACE_FUNCTION VLLM_RUST_* VLLM_CUSTOM_* VLLM_NVTX_*
            VLLM_LOG_BATCHSIZE_INTERVAL VLLM_LOG_MODEL_INSPECTION VLLM_PROCESS_NAME_PREFIX""",
    },
    instead={
        "--gpu-memory-utilization X": "--device-memory-utilization",
        "--uvicorn-log-level LEVEL": "--log-level VLLM_LOGGING_LEVEL",
        "--pooler-config": "--override-pooler-config",
        "--nnodes N": "-n",
        "--node-rank N": "-r",
        "--compilation-config, which changes nothing": "-cc",
        "--attention-config, which changes nothing": "-ac",
        "--pipeline-parallel-size 1, or --tensor-parallel-size N": "-pp",
        _DRAFT_MODEL: "--speculative-model --spec-model",
        _DRAFTS: "--num-speculative-tokens --spec-tokens",
        _METHOD: "--spec-method",
        "--speculative-config.prompt_lookup_max N": "--ngram-prompt-lookup-max",
        "--speculative-config.prompt_lookup_min N": "--ngram-prompt-lookup-min",
        "--speculative-config": "-sc",
        _REPLICAS: """-dp -dpn -dpr -dpl -dpa -dpp -dpb -dph -dpe -dpm -asc
            --data-parallel-size-local VLLM_DP_*""",
        "--tensor-parallel-size alone: ranks divide each expert": "--enable-expert-parallel -ep",
        "--kv-cache-memory-bytes SIZE": "VLLM_CPU_KVCACHE_SPACE",
        "--threads N, under taskset": "VLLM_CPU_OMP_THREADS_BIND VLLM_CPU_NUM_OF_RESERVED_CPU",
        "--allow-runtime-lora-updating --lora-directory DIR": "VLLM_ALLOW_RUNTIME_LORA_UPDATING",
        "--host ADDRESS and --port N": "VLLM_HOST_IP VLLM_PORT",
        "--sse-keep-alive-interval SECONDS": "VLLM_HTTP_TIMEOUT_KEEP_ALIVE",
        "--uvicorn-log-level LEVEL, or --log-format json": """VLLM_LOGGING_* VLLM_CONFIGURE_LOGGING
            VLLM_LOG_STATS_INTERVAL""",
        "--kv-transfer-config": "VLLM_NIXL_* VLLM_MOONCAKE_* VLLM_EC_*",
        "--download-dir DIR": "VLLM_CACHE_ROOT VLLM_MODEL_REDIRECT_PATH",
        "--lora-directory DIR": "VLLM_LORA_RESOLVER_*",
        "--kv-offloading-size SIZE": "VLLM_USE_SIMPLE_KV_OFFLOAD",
        "--shutdown-timeout SECONDS": "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS",
        "--distributed-timeout-seconds SECONDS": """VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS
            VLLM_ENGINE_READY_TIMEOUT_S""",
    },
    cannot={
        "text is generated token by token": "-dc",
        "models are Hugging Face's": "VLLM_USE_MODELSCOPE",
        "no position lies beyond what a model was made for": "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
        "graphics processors are NVIDIA's": "VLLM_ROCM_* VLLM_XPU_* VLLM_TPU_* VLLM_XLA_*",
        _TEXT_ONLY: """VLLM_IMAGE_FETCH_TIMEOUT VLLM_VIDEO_* VLLM_AUDIO_* VLLM_MEDIA_* VLLM_ASSETS_*
            VLLM_MAX_AUDIO_* VLLM_MAX_IMAGE_* VLLM_MAX_MEDIA_* VLLM_MAX_EMBED_*""",
        "limits of fields are fixed": """VLLM_MAX_STOP_STRINGS VLLM_MAX_NUM_BAD_WORDS
            VLLM_MAX_BAD_WORDS_* VLLM_MAX_COMPLETION_PROMPTS VLLM_MAX_N_SEQUENCES
            VLLM_CHAT_TEMPLATE_RENDER_TIMEOUT VLLM_REGEX_* VLLM_TOOL_*""",
        "code of others does not run in the server": "VLLM_PLUGINS VLLM_ALLOW_INSECURE_*",
        "ranks divide every layer": "-dcp -pcp VLLM_PP_*",
        "ranks of several machines are started one by one, or by Ray": """VLLM_RAY_*
            VLLM_LOOPBACK_IP""",
        "there is nothing like it": """VLLM_CONFIG_ROOT VLLM_SERVER_DEV_MODE VLLM_GPT_OSS_*
            VLLM_SYSTEM_START_DATE VLLM_ENFORCE_STRICT_* VLLM_ELASTIC_* VLLM_KV_EVENTS_*
            VLLM_KEEP_ALIVE_ON_ENGINE_DEATH VLLM_ENABLE_COHERE_API""",
    },
)

LLAMA_SERVER = Program(
    "llama.cpp",
    works="""-m --model -hf -hfr --hf-repo -a --alias -t --threads --host --port --api-key
        --api-key-file --ssl-key-file --ssl-cert-file --chat-template-file --sse-ping-interval
        -s --seed --chat-template LLAMA_API_KEY""",
    same={
        "attention is always computed block by block": "-fa= --flash-attn= LLAMA_ARG_FLASH_ATTN",
        "requests are always batched": "-cb --cont-batching LLAMA_ARG_CONT_BATCHING",
        "chat templates are always Jinja": "--jinja LLAMA_ARG_JINJA",
        "/metrics, /slots and /props are always there": """--metrics --props --slots
            LLAMA_ARG_ENDPOINT_METRICS LLAMA_ARG_ENDPOINT_PROPS LLAMA_ARG_ENDPOINT_SLOTS""",
        "every model gives embeddings, and one that judges pairs judges them": """--embedding
            --embeddings --rerank --reranking LLAMA_ARG_EMBEDDINGS LLAMA_ARG_RERANKING""",
        "one pool serves all requests": """-kvu --kv-unified LLAMA_ARG_KV_UNIFIED
            --cache-prompt LLAMA_ARG_CACHE_PROMPT -cram= --cache-ram= LLAMA_ARG_CACHE_RAM
            --cache-idle-slots LLAMA_ARG_CACHE_IDLE_SLOTS -ctxcp= --ctx-checkpoints=
            --swa-checkpoints= LLAMA_ARG_CTX_CHECKPOINTS -cms= --checkpoint-min-step=
            LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT -sps= --slot-prompt-similarity= -dt=
            --defrag-thold= LLAMA_ARG_DEFRAG_THOLD --kv-unified-per-slot=
            LLAMA_ARG_KV_UNIFIED_PER_SLOT""",
        "what is found in the cache is always whole blocks": """--cache-reuse=
            LLAMA_ARG_CACHE_REUSE""",
        "texts are never cut to fit": "--no-context-shift",
        "steps are as large as there is work": "-ub= --ubatch-size= LLAMA_ARG_UBATCH",
        "--device says where all is computed": """-ngl= --gpu-layers= --n-gpu-layers=
            LLAMA_ARG_N_GPU_LAYERS -kvo --kv-offload LLAMA_ARG_KV_OFFLOAD --op-offload
            --no-op-offload""",
        "memory is counted before a model is loaded": """-fit= --fit= LLAMA_ARG_FIT -fitt=
            --fit-target= LLAMA_ARG_FIT_TARGET -fitc= --fit-ctx= LLAMA_ARG_FIT_CTX""",
        "weights are read into memory once, in the order in which they are used": """--mlock
            --no-mmap --mmap --direct-io -dio --no-direct-io -ndio -lm= --load-mode= -lzm=
            --lazy-mode= --repack --no-repack -nr --no-host LLAMA_ARG_LOAD_MODE
            LLAMA_ARG_LAZY_MODE LLAMA_ARG_REPACK LLAMA_ARG_NO_HOST""",
        "files are always checked": "--check-tensors",
        "threads belong to all requests": """-tb= --threads-batch= --threads-http=
            LLAMA_ARG_THREADS_HTTP --prio= --prio-batch= --poll= --poll-batch= --cpu-strict=
            --cpu-strict-batch=""",
        "a request says how its text is read": """--spm-infill -sp --special -e --escape
            --no-escape --perf --no-perf LLAMA_ARG_PERF""",
        "one line a request, to stderr": """--log-disable --log-colors= LLAMA_ARG_LOG_COLORS
            -v --verbose --log-verbose -lv= --verbosity= --log-verbosity= LLAMA_ARG_LOG_VERBOSITY
            --log-prefix --no-log-prefix LLAMA_ARG_LOG_PREFIX --log-timestamps --no-log-timestamps
            LLAMA_ARG_LOG_TIMESTAMPS""",
        "reasoning is always a field of its own": """--reasoning-format=auto|deepseek
            LLAMA_ARG_THINK""",
        "an assistant's last message is always gone on with": """--prefill-assistant
            LLAMA_ARG_PREFILL_ASSISTANT""",
        "the page of Quire is at /": """--ui --webui --no-ui --no-webui LLAMA_ARG_UI
            --no-agent -no-ag --no-ui-mcp-proxy --no-webui-mcp-proxy""",
        "tokens are chosen beside the model": """-bs --backend-sampling
            LLAMA_ARG_BACKEND_SAMPLING""",
        "there is nothing else than text to load": """--no-mmproj --no-mmproj-auto --mmproj-auto
            LLAMA_ARG_MMPROJ_AUTO""",
        "nobody else may bind the port": "--no-reuse-port",
    },
    instead={
        "--max-model-len N (of each request)": "-c --ctx-size LLAMA_ARG_CTX_SIZE",
        "--max-num-seqs N": "-np --parallel LLAMA_ARG_N_PARALLEL",
        "--max-num-batched-tokens N": "-b --batch-size LLAMA_ARG_BATCH",
        "--threads N": "LLAMA_ARG_THREADS",
        "--kv-cache-dtype int8": """-ctk --cache-type-k LLAMA_ARG_CACHE_TYPE_K
            -ctv --cache-type-v LLAMA_ARG_CACHE_TYPE_V""",
        "--host ADDRESS": "LLAMA_ARG_HOST",
        "--port N": "LLAMA_ARG_PORT",
        "the model first: quire serve MODEL": """LLAMA_ARG_MODEL LLAMA_ARG_HF_REPO
            -hff --hf-file LLAMA_ARG_HF_FILE -hfv -hfrv --hf-repo-v LLAMA_ARG_HF_REPO_V
            -hffv --hf-file-v LLAMA_ARG_HF_FILE_V""",
        "the variable HF_TOKEN": "-hft --hf-token",
        "HF_HUB_OFFLINE=1": "--offline LLAMA_ARG_OFFLINE",
        "--served-model-name NAME": "LLAMA_ARG_ALIAS",
        "--allowed-origins ORIGIN ...": "--cors-origins LLAMA_ARG_CORS_ORIGINS",
        "--allowed-methods METHOD ...": "--cors-methods LLAMA_ARG_CORS_METHODS",
        "--allowed-headers HEADER ...": "--cors-headers LLAMA_ARG_CORS_HEADERS",
        "--allow-credentials": """--cors-credentials --no-cors-credentials
            LLAMA_ARG_CORS_CREDENTIALS""",
        "--root-path PATH, behind a proxy": "--api-prefix LLAMA_ARG_API_PREFIX",
        "--api-key-file FILE": "LLAMA_ARG_API_KEY_FILE",
        "--ssl-keyfile FILE": "LLAMA_ARG_SSL_KEY_FILE",
        "--ssl-certfile FILE": "LLAMA_ARG_SSL_CERT_FILE",
        "--sse-keep-alive-interval SECONDS": "LLAMA_ARG_SSE_PING_INTERVAL",
        "--request-read-timeout SECONDS": "-to --timeout LLAMA_ARG_TIMEOUT",
        "--default-chat-template-kwargs": """--chat-template-kwargs
            LLAMA_ARG_CHAT_TEMPLATE_KWARGS""",
        "--chat-template FILE": """LLAMA_ARG_CHAT_TEMPLATE LLAMA_ARG_CHAT_TEMPLATE_FILE""",
        "--default-chat-template-kwargs.enable_thinking true": """-rea --reasoning
            LLAMA_ARG_REASONING""",
        "--default-chat-template-kwargs.reasoning_effort WORD": """--reasoning-effort
            LLAMA_ARG_REASONING_EFFORT""",
        "--no-warm-up": "--no-warmup",
        "--warm-up": "--warmup",
        "--no-enable-prefix-caching": "--no-cache-prompt",
        "--dashboard": "--no-slots",
        "--pooler-config.pooling_type TYPE": "--pooling LLAMA_ARG_POOLING",
        "--pooler-config.normalize": "--embd-normalize",
        "--lora-modules NAME=DIR": "--lora --lora-scaled",
        "--hf-overrides": "--override-kv",
        "--tensor-parallel-size N": """-sm --split-mode LLAMA_ARG_SPLIT_MODE
            -ts --tensor-split LLAMA_ARG_TENSOR_SPLIT""",
        "--device cpu or cuda, and CUDA_VISIBLE_DEVICES": """-dev --device LLAMA_ARG_DEVICE
            -mg --main-gpu LLAMA_ARG_MAIN_GPU""",
        "quire doctor": "--list-devices",
        "quire models": "--cache-list -cl",
        "quire completion bash": "--completion-bash",
        "taskset or numactl": """-C --cpu-mask -Cr --cpu-range -Cb --cpu-mask-batch -Crb
            --cpu-range-batch --numa LLAMA_ARG_NUMA""",
        "--experts-path DIR": """-cmoe --cpu-moe LLAMA_ARG_CPU_MOE -ncmoe --n-cpu-moe
            LLAMA_ARG_N_CPU_MOE""",
        "--log-format json, and standard error into a file": """--log-file LLAMA_ARG_LOG_FILE
            --log-jsonl --no-log-jsonl LLAMA_ARG_LOG_JSONL""",
        "--record-trace FILE": "--log-prompts-dir",
        _DEFAULT.format("temperature"): "--temp --temperature LLAMA_ARG_TEMPERATURE",
        _DEFAULT.format("top_k"): "--top-k LLAMA_ARG_TOP_K",
        _DEFAULT.format("top_p"): "--top-p LLAMA_ARG_TOP_P",
        _DEFAULT.format("min_p"): "--min-p LLAMA_ARG_MIN_P",
        _DEFAULT.format("repetition_penalty"): "--repeat-penalty LLAMA_ARG_REPEAT_PENALTY",
        _DEFAULT.format("presence_penalty"): "--presence-penalty LLAMA_ARG_PRESENCE_PENALTY",
        _DEFAULT.format("frequency_penalty"): "--frequency-penalty LLAMA_ARG_FREQUENCY_PENALTY",
        _DRAFT_MODEL: """--spec-draft-model -md --model-draft LLAMA_ARG_SPEC_DRAFT_MODEL
            --spec-draft-hf -hfd -hfrd --hf-repo-draft LLAMA_ARG_SPEC_DRAFT_HF_REPO""",
        _DRAFTS: """--spec-draft-n-max LLAMA_ARG_SPEC_DRAFT_N_MAX --draft --draft-n --draft-max
            LLAMA_ARG_DRAFT_MAX""",
        _METHOD: "--spec-type LLAMA_ARG_SPEC_TYPE --spec-default",
        _BY_ITSELF: """--spec-draft-n-min LLAMA_ARG_SPEC_DRAFT_N_MIN --draft-min --draft-n-min
            LLAMA_ARG_DRAFT_MIN --spec-draft-p-split --draft-p-split LLAMA_ARG_SPEC_DRAFT_P_SPLIT
            --spec-draft-p-min --draft-p-min LLAMA_ARG_SPEC_DRAFT_P_MIN""",
        "--speculative-config.prompt_lookup_max N": """--spec-ngram-size-n --spec-ngram-size-m
            --spec-ngram-min-hits --spec-ngram-mod-n-min --spec-ngram-mod-n-max
            --spec-ngram-mod-n-match --spec-ngram-simple-size-n --spec-ngram-simple-size-m
            --spec-ngram-simple-min-hits --spec-ngram-map-k-size-n --spec-ngram-map-k-size-m
            --spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m
            --spec-ngram-map-k4v-min-hits""",
    },
    cannot={
        _TEXT_ONLY: """-mm --mmproj LLAMA_ARG_MMPROJ -mmu --mmproj-url LLAMA_ARG_MMPROJ_URL
            --mmproj-offload --no-mmproj-offload LLAMA_ARG_MMPROJ_OFFLOAD --image-min-tokens
            LLAMA_ARG_IMAGE_MIN_TOKENS --image-max-tokens LLAMA_ARG_IMAGE_MAX_TOKENS
            --mtmd-batch-max-tokens LLAMA_ARG_MTMD_BATCH_MAX_TOKENS --video-fps
            LLAMA_ARG_VIDEO_FPS --video-timestamp-interval LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL
            --video-ffmpeg-dir LLAMA_ARG_VIDEO_FFMPEG_DIR --media-path
            -mmdev --mmproj-device MTMD_BACKEND_DEVICE
            -mv --model-vocoder -hfvd --hf-repo-vocoder""",
        _SPLIT: """-ot --override-tensor LLAMA_ARG_OVERRIDE_TENSOR -ncffn --n-cpu-ffn
            LLAMA_ARG_N_CPU_FFN -nkvo --no-kv-offload --rpc LLAMA_ARG_RPC""",
        _NO_SAMPLER: """--samplers --sampler-seq --sampling-seq --top-nsigma --top-n-sigma
            --xtc-probability --xtc-threshold --typical --typical-p --dry-multiplier --dry-base
            --dry-allowed-length --dry-penalty-last-n --dry-sequence-breaker --adaptive-target
            --adaptive-decay --dynatemp-range --dynatemp-exp --mirostat --mirostat-lr
            --mirostat-ent""",
        "penalties look at the whole output": "--repeat-last-n",
        _GUIDED: "--grammar --grammar-file -j --json-schema -jf --json-schema-file",
        "a request says it itself": """--ignore-eos -l --logit-bias -r --reverse-prompt -p
            --prompt -f --file -bf --binary-file""",
        _ROPE: """--rope-scaling LLAMA_ARG_ROPE_SCALING_TYPE --rope-scale LLAMA_ARG_ROPE_SCALE
            --rope-freq-base LLAMA_ARG_ROPE_FREQ_BASE --rope-freq-scale LLAMA_ARG_ROPE_FREQ_SCALE
            --yarn-orig-ctx LLAMA_ARG_YARN_ORIG_CTX --yarn-ext-factor LLAMA_ARG_YARN_EXT_FACTOR
            --yarn-attn-factor LLAMA_ARG_YARN_ATTN_FACTOR --yarn-beta-slow
            LLAMA_ARG_YARN_BETA_SLOW --yarn-beta-fast LLAMA_ARG_YARN_BETA_FAST""",
        "a window is what the model's own files say": "--swa-full LLAMA_ARG_SWA_FULL",
        "texts are never cut to fit; --truncate-max-tokens shortens answers": """--context-shift
            LLAMA_ARG_CONTEXT_SHIFT --keep""",
        "one process serves one model": """--models-dir LLAMA_ARG_MODELS_DIR --models-preset
            LLAMA_ARG_MODELS_PRESET --models-max LLAMA_ARG_MODELS_MAX --models-autoload
            --no-models-autoload LLAMA_ARG_MODELS_AUTOLOAD --sleep-idle-seconds --tags
            LLAMA_ARG_TAGS --reuse-port LLAMA_ARG_REUSE_PORT""",
        "how long an answer is, its request says (max_tokens)": """-n --predict --n-predict
            LLAMA_ARG_N_PREDICT""",
        "control vectors are not served": """--control-vector --control-vector-scaled
            --control-vector-layer-range""",
        "adapters are served by their names, or not at all": "--lora-init-without-apply",
        "a model is downloaded by its name on Hugging Face": """-mu --model-url
            LLAMA_ARG_MODEL_URL -dr --docker-repo LLAMA_ARG_DOCKER_REPO""",
        "tools are run by clients": """--tools LLAMA_ARG_TOOLS --tools-runtime
            LLAMA_ARG_TOOLS_RUNTIME --mcp-servers-config LLAMA_ARG_MCP_SERVERS_CONFIG
            --mcp-servers-json LLAMA_ARG_MCP_SERVERS_JSON -ag --agent LLAMA_ARG_AGENT
            --ui-mcp-proxy --webui-mcp-proxy LLAMA_ARG_UI_MCP_PROXY""",
        "the page is Quire's own": """--path LLAMA_ARG_STATIC_PATH --ui-config --webui-config
            LLAMA_ARG_UI_CONFIG --ui-config-file --webui-config-file
            LLAMA_ARG_UI_CONFIG_FILE""",
        "slots are not files; --kv-store keeps blocks": "--slot-save-path",
        "a budget is of a request (thinking_token_budget)": """--reasoning-budget
            LLAMA_ARG_THINK_BUDGET --reasoning-budget-message LLAMA_ARG_THINK_BUDGET_MESSAGE""",
        "the template decides what reasoning stays": """--reasoning-preserve
            --no-reasoning-preserve LLAMA_ARG_REASONING_PRESERVE""",
        "chat templates are always Jinja": "--no-jinja",
        "what a model writes is always read by its dialect": """--skip-chat-parsing
            --no-skip-chat-parsing LLAMA_ARG_SKIP_CHAT_PARSING""",
        "an assistant's last message is always gone on with": "--no-prefill-assistant",
        "requests are always batched": "-nocb --no-cont-batching",
        "one pool serves all requests": "-no-kvu --no-kv-unified --no-cache-idle-slots",
        "drafts are made by the same threads on the same device": """--spec-draft-threads -td
            --threads-draft --spec-draft-threads-batch -tbd --threads-batch-draft
            --spec-draft-cpu-mask -Cd --cpu-mask-draft --spec-draft-cpu-range -Crd
            --cpu-range-draft --spec-draft-cpu-strict --cpu-strict-draft --spec-draft-prio
            --prio-draft --spec-draft-poll --poll-draft --spec-draft-cpu-mask-batch -Cbd
            --cpu-mask-batch-draft --spec-draft-cpu-strict-batch --cpu-strict-batch-draft
            --spec-draft-prio-batch --prio-batch-draft --spec-draft-poll-batch
            --poll-batch-draft --spec-draft-type-k -ctkd --cache-type-k-draft
            LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K --spec-draft-type-v -ctvd --cache-type-v-draft
            LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V --spec-draft-override-tensor -otd
            --override-tensor-draft --spec-draft-cpu-moe -cmoed --cpu-moe-draft
            LLAMA_ARG_SPEC_DRAFT_CPU_MOE --spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed
            --n-cpu-moe-draft LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE --spec-draft-backend-sampling
            --no-spec-draft-backend-sampling LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING
            --spec-draft-device -devd --device-draft --spec-draft-ngl -ngld --gpu-layers-draft
            --n-gpu-layers-draft LLAMA_ARG_N_GPU_LAYERS_DRAFT""",
        "drafts are a model's or a text's": """--spec-synth-len LLAMA_ARG_SPEC_SYNTH_LEN
            --spec-synth-rates LLAMA_ARG_SPEC_SYNTH_RATES -lcs --lookup-cache-static -lcd
            --lookup-cache-dynamic""",
        "a model is called by its own name": """--embd-gemma-default --fim-qwen-1.5b-default
            --fim-qwen-3b-default --fim-qwen-7b-default --fim-qwen-7b-spec --fim-qwen-14b-spec
            --fim-qwen-30b-default --gpt-oss-20b-default --gpt-oss-120b-default
            --vision-gemma-4b-default --vision-gemma-12b-default""",
    },
)

OLLAMA = Program(
    "Ollama",
    works="CUDA_VISIBLE_DEVICES HTTP_PROXY HTTPS_PROXY NO_PROXY",
    same={
        "attention is always computed block by block": "OLLAMA_FLASH_ATTENTION",
        "the model stays as long as the server": "OLLAMA_KEEP_ALIVE OLLAMA_LOAD_TIMEOUT",
        "nothing is asked of anybody else": "OLLAMA_NO_CLOUD OLLAMA_AUTH OLLAMA_REMOTES",
        "nothing is deleted": "OLLAMA_NOPRUNE",
        "the text of requests is never logged": "OLLAMA_DEBUG_LOG_REQUESTS",
        "they are of its terminal": "OLLAMA_NOHISTORY OLLAMA_EDITOR",
        "files are downloaded by Hugging Face's own client": "OLLAMA_MAX_TRANSFER_STREAMS",
        "templates are the model's own": "OLLAMA_GO_TEMPLATE",
    },
    instead={
        "--host ADDRESS --port N": "OLLAMA_HOST",
        "--max-model-len N": "OLLAMA_CONTEXT_LENGTH",
        "--max-num-seqs N": "OLLAMA_NUM_PARALLEL",
        "--max-num-waiting N": "OLLAMA_MAX_QUEUE",
        "--allowed-origins ORIGIN ...": "OLLAMA_ORIGINS",
        "--kv-cache-dtype int8": "OLLAMA_KV_CACHE_TYPE",
        "--download-dir DIR": "OLLAMA_MODELS",
        "--uvicorn-log-level debug": "OLLAMA_DEBUG",
        "--gpu-memory-utilization X": "OLLAMA_GPU_OVERHEAD",
        "--tensor-parallel-size N": "OLLAMA_SCHED_SPREAD",
        "--device cpu or cuda": "OLLAMA_LLM_LIBRARY OLLAMA_IGPU_ENABLE OLLAMA_VULKAN",
    },
    cannot={
        "one process serves one model": "OLLAMA_MAX_LOADED_MODELS",
        "graphics processors are NVIDIA's": """HSA_OVERRIDE_GFX_VERSION HIP_VISIBLE_DEVICES
            ROCR_VISIBLE_DEVICES GGML_VK_VISIBLE_DEVICES GPU_DEVICE_ORDINAL""",
    },
)

PROGRAMS = (VLLM, LLAMA_SERVER, OLLAMA)
NEUTRAL = (*COMMON, *RARE, *SERVER)
"""vLLM's options that its start scripts have as flags, and that change nothing here."""


def flag_of(neutral: Neutral) -> str:
    return f"--{neutral.name.replace('_', '-')}"


def explained(name: str) -> str:
    """What to say of a flag of others that is not here; "" if nobody has it."""
    found = [one for one in answers_to(name) if not one.same]
    neutral = next((one for one in NEUTRAL if flag_of(one) == name), None)
    if neutral is not None and not found:
        found = [FlagAnswer(VLLM.name, neutral.why)]
    if len(found) < 2:
        return "".join(one.what for one in found)
    return "; ".join(f"for {one.program}'s, {one.what}" for one in found)


@cache
def _answers() -> Mapping[str, list[FlagAnswer]]:
    """Answers by the names in the tables."""
    found: dict[str, list[FlagAnswer]] = {}
    for program in PROGRAMS:
        for table in (program.instead, program.cannot, program.same):
            same = table is program.same
            for text, names in table.items():
                what = f"write {text}" if table is program.instead else text
                for name in names.split():
                    answer = FlagAnswer(program.name, what, same)
                    found.setdefault(name.partition("=")[0], []).append(answer)
    return found


def answers_to(name: str) -> list[FlagAnswer]:
    """What becomes of a flag or a variable, of each program that has it and not as here."""
    answers = _answers()
    if name in answers or name.startswith("-"):
        return answers.get(name, [])
    begun = (one for one in answers if one[-1] == "*" and name.startswith(one[:-1]))
    return answers.get(next(begun, ""), [])


def lost(environment: Mapping[str, str]) -> Iterator[str]:
    """A line for each variable of others that is set and means something that is not done."""
    ours = {name for program in PROGRAMS for name in program.works.split()}
    for name in sorted(environment):
        if name in ours or not name.startswith(("VLLM_", "LLAMA_ARG_", "OLLAMA_")):
            continue
        found = answers_to(name)
        if not found:
            yield f"the variable {name} is not read here"
        elif not found[0].same:
            yield f"the variable {name} is not read here: {found[0].what}"
