"""A conversation over HTTP with OpenAI's own client. First: quire serve"""

import os

from openai import OpenAI

url = os.environ.get("QUIRE_URL", "http://localhost:8000")
client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("QUIRE_API_KEY", "none"))
model = client.models.list().data[0].id

messages = []
for question in ("What does str.split do?", "And str.join?"):
    messages.append({"role": "user", "content": question})
    answer = client.chat.completions.create(model=model, messages=messages, max_tokens=40)
    message = answer.choices[0].message
    messages.append({"role": "assistant", "content": message.content})
    print(f"{question}\n  {message.content}")
