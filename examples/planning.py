"""How many conversations fit a machine that is not here, by the real scheduler. No model loads."""

from quire.engine.config import EngineConfig
from quire_lab.simulation import Deployment, OpenLoop, Simulator, find_machine, find_model
from quire_lab.workload import Lengths, Synthetic

deployment = Deployment(
    find_model("llama-3-8b"), find_machine("l4"), config=EngineConfig(max_num_seqs=256)
)
limits = deployment.limits()
print(f"{limits.num_blocks * limits.block_size:,} tokens of KV cache fit beside the weights")

for rate in (1.0, 4.0):
    workload = Synthetic(
        num_requests=200,
        input_lengths=Lengths.parse("lognormal:300:0.8"),
        output_lengths=Lengths.parse("100-300"),
        rate=rate,
    )
    simulator = Simulator(limits, deployment.cost_model(limits.block_size))
    result = simulator.serve(OpenLoop(workload))
    print(
        f"{rate:g} requests/s: the first token after {result.ttft.p90:.2f} s, then one every "
        f"{result.tpot.p90 * 1000:.0f} ms (p90); {result.mean_running:.1f} run at once"
    )
