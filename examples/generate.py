"""Texts from a model in this process."""

from quire import LLM, SamplingParams

llm = LLM()  # the demonstration model; LLM("Qwen/Qwen2.5-0.5B-Instruct") for a real one
params = SamplingParams(n=2, temperature=0.8, max_tokens=24, seed=1)
for result in llm.generate(["A list is", "To open a file"], params, use_tqdm=False):
    for output in result.outputs:
        print(f"{result.prompt!r} goes on: {output.text!r}")
    print(f"  it held {result.metrics.peak_blocks} blocks at most")
