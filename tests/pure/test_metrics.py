from quire.engine.metrics import RequestMetrics


def metrics(**changes: object) -> RequestMetrics:
    facts = {
        "arrival_time": 10.0, "first_token_time": 12.0, "finished_time": 16.0,
        "num_prompt_tokens": 5, "num_output_tokens": 5, "cached_tokens": 0,
        "peak_blocks": 1, "block_seconds": 6.0,
    }  # fmt: skip
    return RequestMetrics(**{**facts, **changes})  # type: ignore[arg-type]


def test_latencies_by_their_definitions() -> None:
    m = metrics()
    assert (m.ttft, m.e2e_latency, m.tpot, m.normalized_latency) == (2.0, 6.0, 1.0, 1.2)


def test_a_request_without_tokens_has_no_token_latencies() -> None:
    m = metrics(first_token_time=None, num_output_tokens=0)
    assert (m.ttft, m.tpot, m.normalized_latency) == (None, None, None)
    assert metrics(num_output_tokens=1).tpot is None
