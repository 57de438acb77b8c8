"""The C++ module (csrc/python/module.cpp): addresses and numbers in, no tensors."""

from collections.abc import Sequence

def usable() -> list[str]: ...
def builds() -> list[str]: ...
def refusals() -> dict[str, str]: ...
def release_threads() -> None: ...
def choose_of_few(
    x: int,
    x_stride: int,
    masks: int,
    words: int,
    rows: int,
    temperature: int,
    uniform: int,
    count: int,
    width: int,
    chosen: int,
    peaks: int,
    threads: int,
    /,
) -> None: ...
def mask(
    x: int,
    x_stride: int,
    masks: int,
    words: int,
    numbers: int,
    out: int,
    rows: int,
    width: int,
    threads: int,
    /,
) -> None: ...
def copy_blocks(
    pools: Sequence[tuple[int, int, int, int, int]],
    pairs: Sequence[tuple[int, int]],
    threads: int,
    /,
) -> None: ...

class Norm:
    @staticmethod
    def make(weight: int, bias: int, dtype: int, eps: float, centred: bool, /) -> Norm: ...

class Rotation:
    def __init__(
        self, cos: int, sin: int, sink_cos: int, sink_sin: int, query_scale: int, half: int, /
    ) -> None: ...

class Layer:
    def __init__(
        self,
        kv_group: int,
        keys: int,
        values: int,
        key_scales: int,
        value_scales: int,
        kv_dtype: int,
        dtype: int,
        num_heads: int,
        num_kv_heads: int,
        block_rows: int,
        key_dim: int,
        value_dim: int,
        scale: float,
        softcap: float,
        window: int,
        by_chunks: bool,
        sinks: int,
        sink_logits: int,
        norm_turned: bool,
        query_norm: Norm | None,
        key_norm: Norm | None,
        value_norm: Norm | None,
        shared: bool,
        in_rows: bool,
        /,
    ) -> None: ...
    def centre(
        self,
        factors: int,
        query_factors: int,
        common: int,
        first: int,
        shares: int,
        order: int,
        cos: int,
        sin: int,
        /,
    ) -> None: ...

class Plan:
    def __init__(
        self, query_starts: Sequence[int], context_lens: int, block_size: int, threads: int, /
    ) -> None: ...
    def add_kv_group(
        self, slots: int, block_tables: int, width: int, num_dropped: int, num_sink_blocks: int, /
    ) -> None: ...
    def add_chosen(self, slots: int, chosen: int, width: int, num_dropped: int, /) -> None: ...
    def set_bias(self, before: int, bias: int, steps: int, /) -> None: ...
    def set_state_slots(self, slots: int, /) -> None: ...
    def set_drafts(self, confirmed: int, drafts: int, /) -> None: ...
    def set_left(self, left: int, /) -> None: ...
    def add_adapted(self, adapter: Adapter, ranges: Sequence[tuple[int, int]], /) -> None: ...

class Adapter:
    def __init__(self, layers: int, /) -> None: ...
    def set(
        self,
        product: int,
        inputs: int,
        ranks: int,
        lines: int,
        down: int,
        scales: int,
        parts: Sequence[tuple[int, int, int, int, int, int, int]],
        /,
    ) -> None: ...

class Recurrence:
    @staticmethod
    def make(weight: int, bias: int, channels: int, kernel: int, /) -> Recurrence: ...
    def set_heads(
        self,
        heads: int,
        key_heads: int,
        key_dim: int,
        value_dim: int,
        delta: bool,
        by_channel: bool,
        tiled: bool,
        decay: int,
        bias: int,
        skip: int,
        factor: float,
        least: float,
        most: float,
        /,
    ) -> None: ...
    def set_gate(
        self, norm: int, width: int, eps: float, factor: float, first: bool, sigmoid: bool, /
    ) -> None: ...

class StateMemory:
    @staticmethod
    def make(
        rows: tuple[int, int], state: tuple[int, int], inputs: tuple[int, int], /
    ) -> StateMemory: ...

class Norms:
    @staticmethod
    def make(
        before: Norm | None,
        output: Norm | None,
        after: Norm | None,
        scale: float,
        total: float,
        /,
    ) -> Norms: ...

class SelfAttention:
    @staticmethod
    def make(
        qkv: Packed,
        layer: Layer,
        output: Packed,
        query_norm: Norm | None,
        key_norm: Norm | None,
        rotation: int,
        gates: int,
        /,
    ) -> SelfAttention: ...

class LatentAttention:
    @staticmethod
    def make(
        inputs: Packed,
        query_norm: Norm | None,
        queries: Packed | None,
        latent_norm: Norm,
        keys: Sequence[Packed],
        layer: Layer,
        values: Sequence[Packed],
        output: Packed,
        rotation: int,
        /,
    ) -> LatentAttention: ...

class Mlp:
    @staticmethod
    def make(
        up: Packed,
        down: Packed,
        activation: int,
        gated: bool,
        factor: float,
        above: float,
        below: float,
        cut: float,
        /,
    ) -> Mlp: ...

class GivenMlp:
    @staticmethod
    def make(up: Packed, down: Packed, activation: int, first: int, /) -> GivenMlp: ...

class Laurel:
    @staticmethod
    def make(left: Packed, right: Packed, norm: Norm, /) -> Laurel: ...

class Streams:
    @staticmethod
    def make(
        count: int, active: int, router: int, coefficients: int, scale: int, eps: float, /
    ) -> Streams: ...

class Ranks:
    most: int
    @staticmethod
    def memory_bytes(size: int, /) -> int: ...
    def __init__(
        self, file: int, rank: int, size: int, timeout: float, instruction_set: str, /
    ) -> None: ...
    def add_up(self, x: int, size: int, dtype: int, threads: int, /) -> None: ...
    def gather(self, x: int, nbytes: int, out: int, /) -> None: ...
    def tell(self, message: bytes, /) -> None: ...
    def hear(self, timeout: float, /) -> bytes | None: ...
    def answer(self, message: bytes, /) -> None: ...
    def answers(self, timeout: float, /) -> list[bytes]: ...
    def abort(self, reason: str, /) -> None: ...
    def failure(self) -> str | None: ...

class SelfRecurrence:
    @staticmethod
    def make(
        inputs: Packed,
        recurrence: Recurrence,
        memory: StateMemory,
        output: Packed,
        gates: Packed | None,
        steps: Packed | None,
        /,
    ) -> SelfRecurrence: ...

class Decoder:
    def __init__(self, dtype: int, hidden: int, /) -> None: ...
    def add_up_over(self, ranks: Ranks, /) -> None: ...
    def add_layer(self, mixer_norms: Norms, mlp_norms: Norms, parallel: bool, /) -> None: ...
    def set_mixer(self, part: _Part, /) -> None: ...
    def set_mlp(self, part: _Part, /) -> None: ...
    def predict(self, streams: Streams, /) -> None: ...
    def correct(self, streams: Streams, /) -> None: ...
    def end(self, norm: Norm, /) -> None: ...

class Kernels:
    def __init__(self, instruction_set: str, /) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def workspace_bytes(self) -> int: ...
    def attend(
        self,
        plan: Plan,
        layer: Layer,
        query: int,
        query_stride: int,
        key: int,
        key_stride: int,
        value: int,
        value_stride: int,
        out: int,
        rotation: Rotation | None,
        /,
    ) -> None: ...
    def adapt(
        self,
        adapted: Sequence[tuple[Adapter, Sequence[tuple[int, int]]]],
        product: int,
        x: int,
        x_stride: int,
        out: int,
        out_stride: int,
        dtype: int,
        threads: int,
        /,
    ) -> None: ...
    def choose(
        self,
        plan: Plan,
        kv_group: int,
        heads: int,
        width: int,
        most: int,
        key_norm: Norm,
        block_rows: int,
        dtype: int,
        kv_dtype: int,
        keys: int,
        scales: int,
        rotation: Rotation | None,
        query: int,
        query_stride: int,
        key: int,
        key_stride: int,
        weights: int,
        chosen: int,
        counts: int,
        columns: int,
        /,
    ) -> None: ...
    def recur(
        self,
        plan: Plan,
        layer: Recurrence,
        memory: StateMemory,
        x: int,
        x_stride: int,
        dtype: int,
        out: int,
        /,
    ) -> None: ...
    def norm(
        self,
        norm: Norm,
        x: int,
        x_stride: int,
        delta: int,
        delta_stride: int,
        sum: int,
        out: int,
        rows: int,
        width: int,
        dtype: int,
        threads: int,
        /,
    ) -> None: ...
    def activate(
        self,
        x: int,
        x_stride: int,
        out: int,
        rows: int,
        width: int,
        dtype: int,
        activation: int,
        gated: bool,
        factor: float,
        above: float,
        below: float,
        cut: float,
        threads: int,
        /,
    ) -> None: ...
    def predict(
        self,
        by: Streams,
        streams: int,
        x: int,
        rows: int,
        width: int,
        dtype: int,
        threads: int,
        /,
    ) -> None: ...
    def correct(
        self,
        by: Streams,
        streams: int,
        x: int,
        rows: int,
        width: int,
        dtype: int,
        threads: int,
        /,
    ) -> None: ...
    def gate(
        self,
        x: int,
        x_stride: int,
        gates: int,
        gates_stride: int,
        rows: int,
        width: int,
        each: int,
        dtype: int,
        threads: int,
        /,
    ) -> None: ...
    def argmax(
        self, x: int, x_stride: int, out: int, rows: int, width: int, dtype: int, threads: int, /
    ) -> None: ...
    def mix(
        self,
        experts: Experts,
        x: int,
        routed: int,
        out: int,
        rows: int,
        dtype: int,
        threads: int,
        /,
    ) -> None: ...
    def run(
        self,
        decoder: Decoder,
        plan: Plan,
        x: int,
        out: int,
        rotations: Sequence[Rotation],
        given: int,
        given_stride: int,
        streams: int,
        /,
    ) -> None: ...
    def go_on(
        self,
        decoder: Decoder,
        embedding: Packed | None,
        table: int,
        head: Packed,
        vocabulary: int,
        texts: int,
        given: int,
        numbers: int,
        block_size: int,
        kv_groups: Sequence[tuple[int, int]],
        has_states: bool,
        rotations: Sequence[Rotation],
        threads: int,
        out: int,
        /,
    ) -> None: ...

class Packed:
    @staticmethod
    def make(
        form: int,
        rounds_rows: bool,
        inputs: int,
        outputs: int,
        weights: int,
        scales: int,
        bias: int,
        /,
    ) -> Packed: ...
    def set_groups(
        self,
        inputs: int,
        scales: int,
        offsets: int,
        zeros: int,
        factors_kind: int,
        factors: int,
        /,
    ) -> None: ...
    def set_smoothing(self, smoothing: int, /) -> None: ...
    def spread_rows(self) -> None: ...
    def append(self, rest: Packed, /) -> None: ...

class Routing:
    @staticmethod
    def make(
        chosen: int,
        renormalise: bool,
        sigmoid: bool,
        bias: int,
        scale: float,
        groups: int,
        groups_chosen: int,
        best: int,
        before: bool,
        nearness: float,
        factors: int,
        /,
    ) -> Routing: ...

class Experts:
    @staticmethod
    def make(
        router: Packed,
        up: Sequence[Packed],
        down: Sequence[Packed],
        activation: int,
        gated: bool,
        routing: Routing,
        shared_up: Packed | None,
        shared_down: Packed | None,
        /,
    ) -> Experts: ...

_Part = SelfAttention | LatentAttention | SelfRecurrence | Mlp | GivenMlp | Laurel | Experts

class Products:
    def __init__(self, instruction_set: str, /) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def workspace_bytes(self) -> int: ...
    def multiply(
        self,
        weight: Packed,
        x: int,
        x_stride: int,
        dtype: int,
        out: int,
        out_dtype: int,
        rows: int,
        threads: int,
        /,
    ) -> None: ...
    def embed(self, weight: Packed, outputs: int, out: int, dtype: int, rows: int, /) -> None: ...
