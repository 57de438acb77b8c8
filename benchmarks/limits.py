"""What the machine allows: memory reads, and products of a model's weights with few or many rows.

    python benchmarks/limits.py [--in-features 576 --out-features 1536] [--json]

Products are bfloat16, of x [rows, in] with weights [out, in] as torch keeps them (``F.linear``)
and as oneDNN packs them. There are as many weights as make 256 MiB, used in turn, as the layers of
a model are: none is still in the caches from its last use.
"""

from __future__ import annotations

import json

import torch
import torch.nn.functional as F
from common import flags_of
from torch import Tensor

from quire.tools.doctor.machine import read_bandwidth, shortest
from quire_lab.bench.report import machine_facts

BYTES = 256 << 20
ROWS = (1, 4, 16, 64, 512)


def products(in_features: int, out_features: int, rows: int) -> dict[str, float]:
    """Floating-point operations a second, with torch's weights and with oneDNN's."""
    count = max(1, BYTES // (2 * in_features * out_features))
    weights = [
        torch.randn(out_features, in_features).to(torch.bfloat16) for _ in range(min(count, 64))
    ]
    x = torch.randn(rows, in_features).to(torch.bfloat16)
    operations = 2 * rows * in_features * out_features * len(weights)
    found = {"linear": operations / shortest(lambda: [F.linear(x, w) for w in weights])}
    if torch.backends.mkldnn.is_available():
        packed = [_pack(weight, rows) for weight in weights]
        found["packed"] = operations / shortest(lambda: [_packed_linear(x, w) for w in packed])
    return found


def _pack(weight: Tensor, rows: int) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    return packed


def _packed_linear(x: Tensor, packed: Tensor) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    return out


@torch.inference_mode()
def main() -> None:
    parser = flags_of(__doc__)
    parser.add_argument("--in-features", type=int, default=576, help="(%(default)s)")
    parser.add_argument("--out-features", type=int, default=1536, help="(%(default)s)")
    parser.add_argument("--bandwidth-only", action="store_true", help="leave the products out")
    parser.add_argument("--json", action="store_true", help="report as JSON")
    arguments = parser.parse_args()

    shape = (arguments.in_features, arguments.out_features)
    bandwidth = read_bandwidth()
    table = {} if arguments.bandwidth_only else {rows: products(*shape, rows) for rows in ROWS}
    machine = machine_facts()
    if arguments.json:
        facts = {"machine": machine, "threads": torch.get_num_threads(), "shape": shape}
        print(json.dumps({**facts, "read_bytes_per_second": bandwidth, "products": table}))
        return
    print(f"{machine['cpu']}, {torch.get_num_threads()} threads, torch {machine['torch']}")
    print(f"memory reads {bandwidth / 1e9:.1f} GB/s")
    print(f"bfloat16 products, weights {shape[1]} x {shape[0]}, GFLOP/s (weights read, GB/s):")
    for rows, kinds in table.items():
        cells = (
            f"{name} {rate / 1e9:6.0f} ({rate / rows / 1e9:5.1f})" for name, rate in kinds.items()
        )
        print(f"{rows:5} rows  {'   '.join(cells)}")


if __name__ == "__main__":
    main()
