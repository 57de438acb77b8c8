"""LiteLLM's proxy before the server, asked by OpenAI's client."""

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import openai

URL, MODEL = os.environ["QUIRE_URL"], os.environ["QUIRE_MODEL"]
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
with tempfile.TemporaryDirectory() as folder:
    config = Path(folder, "config.yaml")  # JSON is YAML
    params = {"model": f"hosted_vllm/{MODEL}", "api_base": URL + "/v1", "api_key": "none"}
    models = [{"model_name": "mine", "litellm_params": params}]
    key = "sk-" + secrets.token_hex(16)  # the proxy's own, for those who come to it
    settings = {"general_settings": {"master_key": key}}
    config.write_text(json.dumps({"model_list": models, **settings}))
    command = Path(sys.executable).parent / "litellm"
    proxy = subprocess.Popen(
        [command, "--config", config, "--host", "127.0.0.1", "--port", str(port)]
    )
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/health/liveliness").is_success:
                    break
            except httpx.TransportError:
                pass
            assert time.monotonic() < deadline and proxy.poll() is None, "it does not start"
            time.sleep(0.5)
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}", api_key=key, max_retries=0)
        ask = {"model": "mine", "messages": [{"role": "user", "content": "hello"}]}
        answer = client.chat.completions.create(**ask, max_tokens=12)
        assert answer.choices[0].message.content and answer.usage.completion_tokens <= 12
        assert list(client.chat.completions.create(**ask, max_tokens=12, stream=True))
    finally:
        proxy.terminate()
        proxy.wait(30)
