"""EleutherAI's harness: log-likelihoods of choices, and text, over completions and chats."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

QUESTIONS = [{"q": f"{n} plus {n} is", "choices": [str(2 * n), str(n)], "label": 0} for n in (1, 2)]
COMMON = "dataset_path: json\ntest_split: test\ndoc_to_text: '{{q}}'\n"
CHOICES = "output_type: multiple_choice\ndoc_to_target: label\ndoc_to_choice: choices\n"
WRITTEN = (
    "output_type: generate_until\ndoc_to_target: '{{choices[0]}}'\n"
    "generation_kwargs: {until: ['\\n'], max_gen_toks: 8}\n"
)


def evaluate(folder: Path, kind: str, path: str, task: str) -> dict[str, object]:
    base = f"{os.environ['QUIRE_URL']}/v1/{path}"
    model = f"model={os.environ['QUIRE_MODEL']},base_url={base},num_concurrent=2"
    tokenizer = f"tokenizer={os.environ['QUIRE_TOKENIZER']},tokenizer_backend=huggingface"
    chat = ["--apply_chat_template"] if "chat" in kind else []
    done = subprocess.run(
        [
            Path(sys.executable).parent / "lm_eval", "--model", kind, *chat,
            "--model_args", f"{model},{tokenizer}", "--include_path", folder, "--tasks", task,
            "--output_path", folder / task,
        ],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OPENAI_API_KEY": "none"},
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, (kind, task)
    (report,) = (folder / task).rglob("results_*.json")
    return json.loads(report.read_text())["results"][task]


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    data = folder / "questions.jsonl"
    data.write_text("\n".join(map(json.dumps, QUESTIONS)))
    for task, form in (("chosen", CHOICES), ("written", WRITTEN)):
        files = f"dataset_kwargs: {{data_files: {{test: {data}}}}}\n"
        (folder / f"{task}.yaml").write_text(f"task: {task}\n{COMMON}{files}{form}")
    chosen = evaluate(folder, "local-completions", "completions", "chosen")
    assert 0 <= chosen["acc,none"] <= 1
    assert evaluate(folder, "local-chat-completions", "chat/completions", "written")
