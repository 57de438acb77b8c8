"""LangChain, by its clients for OpenAI, Ollama and Anthropic: tools and typed outputs."""

import os
from typing import Literal

from langchain_anthropic import ChatAnthropic
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

URL, MODEL = os.environ["QUIRE_URL"], os.environ["QUIRE_MODEL"]


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Paris", "Rome"]
    hot: bool


given = {"model": MODEL, "base_url": URL + "/v1", "api_key": "none", "max_retries": 0}
chats = ChatOpenAI(**given, max_tokens=200)
responses = ChatOpenAI(**given, max_tokens=200, use_responses_api=True)
claude = ChatAnthropic(model=MODEL, base_url=URL, api_key="none", max_tokens=200, max_retries=0)
llama = ChatOllama(model=MODEL, base_url=URL, num_predict=200)
for model in (chats, responses, claude, llama):
    short = model.bind(stop=["\n"]) if model is chats else model
    assert short.invoke("hello").content
    assert list(short.stream("hello"))
for model in (chats, responses, claude):
    message = model.bind_tools([Weather], tool_choice="any").invoke("weather?")
    Weather.model_validate(message.tool_calls[0]["args"])
for model in (chats, responses):
    for method in ("json_schema", "function_calling"):
        typed = model.with_structured_output(Weather, method=method)
        assert isinstance(typed.invoke("weather?"), Weather), method
assert isinstance(claude.with_structured_output(Weather).invoke("weather?"), Weather)
typed = llama.with_structured_output(Weather, method="json_schema")
assert isinstance(typed.invoke("weather?"), Weather)
assert chats.get_num_tokens_from_messages  # it counts by itself
