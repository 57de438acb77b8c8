from __future__ import annotations

from pathlib import Path

import pytest

from quire.errors import ConfigError
from quire.workload import TraceRequest, read_azure

CSV = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""


def test_azure_rows_become_requests(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(CSV)
    requests = read_azure(file, limit=2)
    assert [(r.prompt_tokens, r.output_tokens) for r in requests] == [(374, 44), (396, 109)]
    assert requests[0].arrival == 0.0
    assert requests[1].arrival == pytest.approx(4.314579, abs=1e-6)


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "TIMESTAMP,ContextTokens,GeneratedTokens\nx,1,2\n"])
def test_another_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"trace\.csv"):
        read_azure(file)
    with pytest.raises(ConfigError, match="missing"):
        read_azure(tmp_path / "missing.csv")


@pytest.mark.parametrize(
    ("prompt", "output", "length", "expected"),
    [
        (10, 20, 100, (10, 20)),
        (90, 20, 100, (80, 20)),
        (90, 90, 100, (50, 50)),
        (5, 0, 100, (5, 1)),
    ],
)
def test_clipping_keeps_within_the_models_length(
    prompt: int, output: int, length: int, expected: tuple[int, int]
) -> None:
    clipped = TraceRequest(0.0, prompt, output).clipped(length)
    assert (clipped.prompt_tokens, clipped.output_tokens) == expected
