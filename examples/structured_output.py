"""Answers that are values of a type, whatever the model. First: quire serve"""

import os
from typing import Literal

from openai import OpenAI
from pydantic import BaseModel, Field

url = os.environ.get("QUIRE_URL", "http://localhost:8000")
client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("QUIRE_API_KEY", "none"))
model = client.models.list().data[0].id


class Function(BaseModel):
    name: str = Field(max_length=20)
    kind: Literal["function", "method", "class"]
    arguments: int = Field(ge=0, le=9)


question = [{"role": "user", "content": "Describe str.split."}]
found = client.chat.completions.parse(model=model, messages=question, response_format=Function)
print(repr(found.choices[0].message.parsed))

# vLLM's fields have the other forms: regex, choice, grammar.
choice = client.chat.completions.create(
    model=model, messages=question, extra_body={"structured_outputs": {"choice": ["yes", "no"]}}
)
print(choice.choices[0].message.content)
