"""Requests that begin alike share the memory and the work of their beginning."""

from quire import LLM, SamplingParams

llm = LLM()
manual = "str.split(sep=None, maxsplit=-1): return a list of the words in the string. " * 20
questions = ["What is sep?", "What is maxsplit?", "What is returned?"]
params = SamplingParams(temperature=0, max_tokens=8)
for question in questions:
    (result,) = llm.generate([manual + question], params, use_tqdm=False)
    metrics = result.metrics
    print(f"{metrics.cached_tokens} of {metrics.num_prompt_tokens} tokens were there already")
