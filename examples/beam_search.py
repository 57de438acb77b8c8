"""The likeliest texts, by a search whose beams share their common part block by block."""

from quire import LLM, SamplingParams

llm = LLM()
params = SamplingParams(use_beam_search=True, n=4, temperature=0, max_tokens=12)
(result,) = llm.generate(["A dictionary is"], params, use_tqdm=False)
for output in result.outputs:
    print(f"{output.cumulative_logprob:7.2f}  {output.text!r}")
