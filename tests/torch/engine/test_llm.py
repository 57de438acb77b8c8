"""The Python API and the command line on the demonstration model."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.core.errors import ConfigError, ModelError, RequestError
from quire.engine.assembly.loading import OVERRIDES
from quire.models.demo import DEMO_MODEL
from quire.tools.cli import main
from quire.tools.commands.others import LLAMA_SERVER

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(kv_cache_memory_bytes="16MiB")


def test_one_prompt_or_many_in_every_shape(llm: LLM) -> None:
    ids = llm.engine.input_processor.tokenizer.encode("A list is")
    prompts: list[Any] = ["A list is", ids, {"prompt": "A list is"}, {"prompt_token_ids": ids}]
    alone = [llm.generate(prompt, GREEDY, use_tqdm=False)[0] for prompt in prompts]
    together = llm.generate(prompts, [GREEDY] * 4, use_tqdm=False)
    assert len({o.outputs[0].text for o in alone + together}) == 1
    assert [o.prompt for o in together] == ["A list is", None, "A list is", None]


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (9, 1, 5)]
    outputs = llm.generate(["a", "b", "c"], params, use_tqdm=False)
    assert [len(o.outputs[0].token_ids) for o in outputs] == [9, 1, 5]


def test_chat_goes_through_the_template(llm: LLM) -> None:
    message = {"role": "user", "content": "What is a list?"}
    (one,) = llm.chat([message], GREEDY, use_tqdm=False)
    many = llm.chat([[message], [message]], GREEDY, use_tqdm=False)
    assert len({tuple(o.outputs[0].token_ids) for o in [one, *many]}) == 1
    ids = llm.engine.input_processor.begin_chat([message]).token_ids
    assert one.prompt_token_ids == ids


def test_the_first_questions_of_the_readme_are_answered_well(llm: LLM) -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    question, prompt = (
        re.search(pattern, readme) for pattern in (r'"content": "(.*?)"', r'prompt="(.*?)"')
    )
    assert question is not None and prompt is not None
    params = SamplingParams(temperature=0.0, max_tokens=60)
    message = {"role": "user", "content": question[1]}
    (answer,) = llm.chat([message], params, use_tqdm=False)
    (text,) = llm.generate(prompt[1], params, use_tqdm=False)
    for output, said in ((answer, "Open file and return a stream."), (text, "are alphanumeric")):
        assert said in output.outputs[0].text
        assert output.outputs[0].finish_reason == "stop", "it ends by itself"


def test_one_bad_prompt_refuses_all_and_leaves_nothing(llm: LLM) -> None:
    with pytest.raises(RequestError, match="vocabulary"):
        llm.generate(["fine", [10**6]], GREEDY, use_tqdm=False)
    with pytest.raises(RequestError):
        llm.generate(["fine"] * 2, [GREEDY, SamplingParams(n=200)], use_tqdm=False)
    with pytest.raises(ConfigError, match="2 prompts came with 1"):
        llm.generate(["a", "b"], [GREEDY], use_tqdm=False)
    assert not llm.engine.has_work
    usage = llm.engine.scheduler.allocator.usage()
    assert usage.cached + usage.free == usage.capacity


def test_a_pool_too_small_for_the_model_shortens_it_unless_told_otherwise() -> None:
    llm = LLM(kv_cache_memory_bytes="1MiB")
    assert llm.capacity.max_model_len == 512 == llm.capacity.num_blocks * 16
    with pytest.raises(ConfigError, match="max_model_len 1024 needs a KV pool of 2 MiB"):
        LLM(kv_cache_memory_bytes="1MiB", max_model_len=1024)


def test_the_capacity_is_told_in_one_paragraph() -> None:
    text = LLM(kv_cache_memory_bytes="16MiB").capacity.describe()
    for part in ("bfloat16", "2 KiB of KV cache a token", "512 blocks of 16", "8,192 tokens",
                 "holds 4 sequences of the full 2,048 tokens", "16 typical chats of 499",
                 "a token (bfloat16)",
                 ):  # fmt: skip
        assert part in text
    assert "rounded" not in text
    rounded = LLM(kv_cache_memory_bytes="16MiB", quantization="int4", kv_cache_dtype="int8")
    assert "MiB of weights rounded as int4, " in rounded.capacity.describe()
    assert "of KV cache a token (int8)" in rounded.capacity.describe()


def test_prefix_caching_is_refused_where_keys_stretch(model_dir: Callable[[str], Path]) -> None:
    directory = model_dir("dynamic")
    assert not LLM(directory, max_model_len=64).capacity.limits.enable_prefix_caching
    with pytest.raises(ConfigError, match="enable_prefix_caching"):
        LLM(directory, max_model_len=64, enable_prefix_caching=True)


def test_bad_models_and_settings_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not a directory"):
        LLM(tmp_path / "missing")
    with pytest.raises(ModelError, match="does not exist"):
        LLM(tmp_path)
    with pytest.raises(ConfigError, match="chat_template"):
        LLM(chat_template=str(tmp_path / "missing.jinja"))
    with pytest.raises(ConfigError, match="dtype"):
        LLM(dtype="int3")
    with pytest.raises(ConfigError, match=r"max_model_length.*did you mean max_model_len"):
        LLM(max_model_length=5)


def test_generate_prints_text_and_the_memory_story(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--temperature", "0", "--max-tokens", "5", "--kv-cache-memory-bytes", "8MiB"]
    assert main(["generate", "A list is", *arguments]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("A list is")
    assert "KV pool is 8 MiB" in err and "KV blocks" in err


def test_chat_reads_lines_until_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["What is a list?", "", "/clear", "And a dict?"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines) + "\n"))
    assert main(["chat", "--temperature", "0", "--max-tokens", "6"]) == 0
    assert len(capsys.readouterr().out.strip().splitlines()) >= 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["generate", "x", "--model", "/missing/model"],
            "model /missing/model: there is no such file or directory",
        ),
        (["generate", "x", "--block-size", "0"], "block_size"),
        (["generate", "x", "--temperature", "nan"], "temperature"),
        (["generate", "x", "--min-tokens", "5000", "--max-tokens", "5000"], "min_tokens must be"),
        (["generate", ""], "prompt must not be empty"),
    ],
)
def test_errors_are_one_line_and_a_status(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    assert message in capsys.readouterr().err


def test_an_unknown_flag_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["generate", "x", "--max-modl-len", "5"])
    assert "--max-modl-len" in capsys.readouterr().err


def model_with(tmp_path: Path, generation_config: str) -> Path:
    for file in DEMO_MODEL.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "generation_config.json").write_text(generation_config)
    return tmp_path


def test_what_is_left_out_is_as_the_model_says(tmp_path: Path) -> None:
    config = '{"temperature": 0.5, "top_k": 3, "top_p": null, "eos_token_id": 0}'
    directory = model_with(tmp_path, config)
    llm = LLM(directory, kv_cache_memory_bytes="8MiB")
    assert llm.default_sampling_params() == SamplingParams(temperature=0.5, top_k=3)
    assert llm.default_sampling_params(top_k=0, n=2).top_k == 0
    assert llm.default_sampling_params(use_beam_search=True, n=2).temperature == 1.0
    neutral = LLM(directory, kv_cache_memory_bytes="8MiB", generation_config="none")
    assert neutral.default_sampling_params() == SamplingParams()


def test_what_the_table_of_flags_says_of_overrides_is_so() -> None:
    told = " ".join(LLAMA_SERVER.instead)
    names = set(re.findall(r"--override-generation-config\.(\w+)", told))
    assert "temperature" in names and names <= {*OVERRIDES}


def test_configs_give_way_to_overrides(tmp_path: Path) -> None:
    directory = model_with(tmp_path, '{"temperature": 0.5, "top_k": 3}')
    small = {"kv_cache_memory_bytes": "8MiB"}
    llm = LLM(
        **small,
        hf_overrides={"max_position_embeddings": 64},
        generation_config=str(directory),
        override_generation_config='{"top_k": 5, "presence_penalty": 1}',
    )
    assert llm.engine.input_processor.max_model_len == 64
    expected = SamplingParams(temperature=0.5, top_k=5, presence_penalty=1)
    assert llm.default_sampling_params() == expected
    for wrong in ({"top_q": 1}, {"top_p": 2}):
        with pytest.raises(ConfigError, match=r"override_generation_config.*top_"):
            LLM(**small, override_generation_config=wrong)
    with pytest.raises(ModelError, match="hidden_size"):
        LLM(**small, hf_overrides={"hidden_size": "wide"})


@pytest.mark.parametrize("config", ['{"temperature": -1}', '{"top_k": "many"}', "[]"])
def test_a_bad_generation_config_is_named(tmp_path: Path, config: str) -> None:
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        LLM(model_with(tmp_path, config), kv_cache_memory_bytes="8MiB")


def test_a_chat_shows_tools_and_goes_on_with_its_last_message(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}{{ mood or '' }}"
        "{% for m in messages %}[{{ m.content }}]{% endfor %}"
        "{% if add_generation_prompt %}>{% endif %}"
    )
    llm = LLM(kv_cache_memory_bytes="4MiB", chat_template=str(template))
    params = SamplingParams(max_tokens=1)
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    tools = [{"type": "function", "function": {"name": "look"}}]

    def prompt(**options: Any) -> str:
        (output,) = llm.chat(messages, params, False, **options)
        return llm.engine.input_processor.tokenizer.decode(output.prompt_token_ids)

    assert prompt(tools=tools, chat_template_kwargs={"mood": "calm"}) == "look calm[a][b]>"
    assert prompt(add_generation_prompt=False, continue_final_message=True) == "[a][b"
    with pytest.raises(RequestError, match="continue_final_message"):
        prompt(continue_final_message=True)
