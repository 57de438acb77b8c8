"""GuideLLM: a short benchmark, all of whose requests must succeed."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

URL, MODEL = os.environ["QUIRE_URL"], os.environ["QUIRE_MODEL"]
with tempfile.TemporaryDirectory() as folder:
    report = Path(folder, "report.json")
    done = subprocess.run(
        [
            Path(sys.executable).parent / "guidellm", "run", "--disable-console",
            "--backend", f"kind=openai_http,target={URL},model={MODEL}",
            "--tokenizer", f"kind=huggingface_auto,model={os.environ['QUIRE_TOKENIZER']}",
            "--profile", "kind=synchronous",
            "--constraint", "kind=max_requests,count=4",
            "--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=8",
            "--output", f"kind=json,path={report}",
        ],
        cwd=folder,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.returncode
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    requests = benchmark["requests"]
    assert len(requests["successful"]) == 4 and not requests["errored"], requests["errored"]
