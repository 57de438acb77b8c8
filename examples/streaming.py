"""An answer as it is written. First: quire serve"""

import os

from openai import OpenAI

url = os.environ.get("QUIRE_URL", "http://localhost:8000")
client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("QUIRE_API_KEY", "none"))

stream = client.chat.completions.create(
    model=client.models.list().data[0].id,
    messages=[{"role": "user", "content": "Explain dict.get."}],
    max_tokens=40,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    else:
        print(f"\n{chunk.usage.completion_tokens} tokens")
