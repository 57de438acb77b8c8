"""Products with packed weights equal those in float64, within the rounding of their types.

Once for each instruction set that this machine has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from quire.kernels.packing import SPREAD_GROUPS, Format, Groups
from quire.kernels.pages import HugePages
from quire.kernels.products import DTYPES, PackedWeight, Products
from support.instruction_sets import TESTED
from support.packed_weights import FORMS, fits, groups, meaning

SHAPES = ((1, 8), (16, 64), (37, 96), (130, 72), (300, 136), (1000, 576))  # outputs, inputs
# For all but int4, whose groups are multiples of 8.
ODD_INPUTS = ((5, 1), (48, 7), (33, 10), (64, 77))
LAW_SHAPES = ((37, 96), (130, 160), (330, 640), (40, 3200), (64, 77), (50, 768))
# Of groups, those that may multiply rounded rows.
ROUNDING_ROWS = (Format.int4, Format.int5, Format.int6, Format.grouped_int8)
ROWS = (1, 2, 3, 4, 5, 7, 12, 13, 31, 200)

# Relative to the sum of |x| |weight|, which is what rounding is relative to: of the result to its
# type, and of sums in float32. bf16 weights are multiplied without rounding.
BOUND = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11 + 1e-6}

with_types = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.fixture(params=TESTED)
def products(request: pytest.FixtureRequest) -> Products:
    return Products(request.param)


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """New tensors hold NaN until they are written."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    assert torch.empty(1).isnan()
    yield
    torch.use_deterministic_algorithms(False)


def check(packed: PackedWeight, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
    """Against ``weight`` [out, in] in float64, for several numbers of rows."""
    for rows in ROWS:
        # A view that is wider than its rows, beyond which there is NaN.
        x = torch.full((rows, packed.inputs + 3), float("nan"), dtype=dtype)[:, : packed.inputs]
        x.copy_(torch.randn(x.shape))
        expected = x.double() @ weight.double().T
        scale = x.double().abs() @ weight.double().abs().T
        if bias is not None:
            expected, scale = expected + bias.double(), scale + bias.double().abs()
        found = packed(x)
        assert found.dtype == dtype
        assert found.shape == expected.shape
        assert bool(((found.double() - expected).abs() <= BOUND[dtype] * scale).all())
        unrounded = packed.floats(x)
        assert unrounded.dtype == torch.float32
        assert torch.equal(unrounded.to(dtype), found)


def bias_of(outputs: int) -> Tensor | None:
    return torch.randn(outputs) if outputs % 2 else None


@with_types
@pytest.mark.parametrize("shape", (*SHAPES, *ODD_INPUTS), ids=str)
@pytest.mark.parametrize("weight_dtype", DTYPES, ids=str)
def test_floats(
    products: Products, shape: tuple[int, int], weight_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    weight, bias = torch.randn(shape).to(weight_dtype), bias_of(shape[0])
    check(PackedWeight.from_floats(products, weight, bias), weight, bias, dtype)


def test_every_number_of_float16(products: Products) -> None:
    """Small ones without a leading bit as well."""
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.float16)
    weight = torch.where(numbers.isfinite(), numbers, 0).view(-1, 64)
    packed = PackedWeight.from_floats(products, weight, None)
    assert torch.equal(packed(torch.eye(64, dtype=torch.float16)), weight.T)


@with_types
@pytest.mark.parametrize("shape", (*SHAPES, *ODD_INPUTS), ids=str)
def test_int8(products: Products, shape: tuple[int, int], dtype: torch.dtype) -> None:
    codes, scales = torch.randint(256, shape, dtype=torch.uint8), torch.rand(shape[0]) / 100
    weight, bias = (codes.double() - 128) * scales[:, None], bias_of(shape[0])
    check(PackedWeight.from_int8(products, codes, scales, bias, False), weight, bias, dtype)


GROUPED = (
    (Format.int4, 8, ""),
    (Format.int4, 8, "zeros"),
    (Format.int4, 72, "zeros"),
    (Format.int4, 64, "offsets"),
    (Format.int4, 32, "factors and offsets"),
    (Format.int4, 16, "factors and offsets"),
    (Format.int5, 32, ""),
    (Format.int5, 32, "factors and offsets"),
    (Format.int6, 16, "factors"),
    (Format.grouped_int8, 32, ""),
    (Format.grouped_int8, 16, "offsets"),
)


@with_types
@pytest.mark.parametrize(("form", "group", "offsets"), GROUPED, ids=str)
@pytest.mark.parametrize("outputs", [1, 37, 300])
def test_groups(
    products: Products,
    outputs: int,
    form: Format,
    group: int,
    offsets: str,
    dtype: torch.dtype,
) -> None:
    shape = (outputs, group * (16 if "factors" in offsets else 2))
    codes, meant = (
        torch.randint(2**form.bits, shape, dtype=torch.uint8),
        groups(form, shape, group, offsets),
    )
    weight, bias = meaning(codes, form, meant), bias_of(outputs)
    packed = PackedWeight.from_groups(products, form, codes, meant, bias)
    if offsets in ("", "factors"):
        check(packed, weight, bias, dtype)
    else:  # the sums of x are multiplied on their own, and rounded
        without = meant._replace(offsets=None, zeros=torch.zeros(outputs, meant.num_groups))
        check_within(packed, weight, 2 * meaning(codes, form, without) + weight.abs(), bias, dtype)
    ids = torch.randint(outputs, (5,))
    rounded = weight[ids].float().to(dtype)
    assert torch.equal(packed.rows(ids, dtype), rounded)
    assert torch.equal(
        PackedWeight.from_groups(products, form, codes, meant, None)
        .floats(torch.eye(shape[1], dtype=dtype))
        .double(),
        weight.float().double().T,
    )


def check_within(
    packed: PackedWeight, weight: Tensor, largest: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> None:
    """As ``check``, with rounding relative to |x| ``largest``."""
    for rows in ROWS:
        x = torch.randn(rows, packed.inputs).to(dtype)
        expected = x.double() @ weight.T + (0 if bias is None else bias.double())
        scale = x.double().abs() @ largest.T + expected.abs()
        assert bool(((packed(x).double() - expected).abs() <= BOUND[dtype] * scale).all())


@with_types
@pytest.mark.parametrize("shape", (*SHAPES, *ODD_INPUTS), ids=str)
def test_int8_rows_are_rounded_to_their_own_scales(
    products: Products, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    codes, scales = torch.randint(256, shape, dtype=torch.uint8), torch.rand(shape[0]) / 100
    weight, bias = (codes.double() - 128) * scales[:, None], bias_of(shape[0])
    packed = PackedWeight.from_int8(products, codes, scales, bias, True)
    check_rounding_rows(packed, weight, bias, dtype)


@with_types
@pytest.mark.parametrize(("form", "group", "offsets"), GROUPED, ids=str)
@pytest.mark.parametrize("outputs", [1, 37, 300])
def test_rows_are_rounded_for_groups_as_well(
    products: Products,
    outputs: int,
    form: Format,
    group: int,
    offsets: str,
    dtype: torch.dtype,
) -> None:
    shape = (outputs, group * (16 if "factors" in offsets else 3))
    codes = torch.randint(2**form.bits, shape, dtype=torch.uint8)
    meant, bias = groups(form, shape, group, offsets), bias_of(outputs)
    weight, smoothing = meaning(codes, form, meant), None
    largest = weight.abs()
    if meant.zeros is not None or meant.offsets is not None:
        # The sums of x are multiplied on their own, and rounded.
        without = meant._replace(offsets=None, zeros=torch.zeros(outputs, meant.num_groups))
        largest = 2 * meaning(codes, form, without) + largest
    if outputs == 37:
        smoothing = torch.exp2(torch.randint(-4, 5, shape[1:]).float())
    packed = PackedWeight.from_groups(products, form, codes, meant, bias, True, smoothing)
    check_rounding_rows(packed, weight, bias, dtype, group, largest, smoothing)


@with_types
@pytest.mark.parametrize("group", SPREAD_GROUPS)
@pytest.mark.parametrize("smoothed", [False, True])
def test_rows_are_spread_before_they_are_rounded(
    products: Products, smoothed: bool, group: int, dtype: torch.dtype
) -> None:
    """By the matrix that weights were multiplied by, so that products and rows stay."""
    form, shape = Format.grouped_int8, (37, 3 * group)
    codes, smoothing = torch.randint(256, shape, dtype=torch.uint8), None
    if smoothed:
        smoothing = torch.exp2(torch.randint(-4, 5, shape[1:]).float())
    meant, bias = groups(form, shape, group, ""), bias_of(37)
    packed = PackedWeight.from_groups(products, form, codes, meant, bias, True, smoothing, True)
    weight = meaning(codes, form, meant)
    check_rounding_rows(packed, weight, bias, dtype, group, None, smoothing, spread_runs)
    rows = spread_runs(weight) * (1 if smoothing is None else smoothing)
    found = packed.rows(torch.arange(37), torch.float32).double()
    assert (found - rows).abs().max() <= 1e-6 * rows.abs().max()
    nothing = PackedWeight.from_groups(products, form, codes, meant, None, True, smoothing, True)
    x = torch.zeros(3, shape[1], dtype=dtype)
    for value in (torch.inf, -torch.inf, torch.nan, -torch.nan):
        x[1, 5] = value
        assert nothing.floats(x)[1].isnan().all() and not nothing.floats(x)[::2].any()


def spread_runs(x: Tensor) -> Tensor:
    """x [..., n] by Hadamard's matrix of 16, in float64."""
    two = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    four = torch.kron(two, two)
    turned = x.double().reshape(-1, 16) @ torch.kron(four, four) / 4
    return turned.reshape(x.shape)


@pytest.mark.parametrize("form", ["w8a8", *(form.name for form in ROUNDING_ROWS)])
@pytest.mark.parametrize("extreme", [0, -1], ids=["lowest", "highest"])
def test_the_largest_sums_of_bytes_fit(products: Products, form: str, extreme: int) -> None:
    """Every code at one end of its range, and every x at one of its own."""
    inputs = 4096
    if form == "w8a8":
        codes = torch.full((40, inputs), extreme % 256, dtype=torch.uint8)
        packed = PackedWeight.from_int8(products, codes, torch.ones(40), None, True)
        code = codes[0, 0].item() - 128
    else:
        kind = Format[form]
        codes = torch.full((40, inputs), extreme % 2**kind.bits, dtype=torch.uint8)
        meant = Groups(torch.ones(40, 1))
        packed = PackedWeight.from_groups(products, kind, codes, meant, None, rounds_rows=True)
        code = codes[0, 0].item() - 2 ** (kind.bits - 1)
    for sign in (1.0, -1.0):
        found = packed.floats(torch.full((13, inputs), 127 * sign))
        assert torch.equal(found, torch.full((13, 40), 127 * sign * code * inputs))


def check_rounding_rows(
    packed: PackedWeight,
    weight: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    group: int | None = None,
    sizes: Tensor | None = None,
    smoothing: Tensor | None = None,
    turn: Callable[[Tensor], Tensor] = Tensor.double,
) -> None:
    """As ``check``, of x that is rounded to int8, a group's inputs of a row to their own scale.

    sizes: of weights, as errors grow with them. smoothing: by what x is multiplied before, and
    ``turn`` what it becomes then.
    """
    sizes = weight.abs() if sizes is None else sizes
    size = group or packed.inputs
    spread = torch.logspace(-3, 0, packed.inputs // size).repeat_interleave(size)
    for rows in ROWS:
        x = torch.randn(rows, packed.inputs) * torch.logspace(-2, 0, rows)[:, None]
        given = x = (x * spread if group else x).to(dtype)
        if smoothing is not None:
            x = x.double() * smoothing
        x = turn(x)
        largest = x.double().abs().view(rows, -1, size).amax(dim=2)
        step = largest.repeat_interleave(size, dim=1) / 127
        rounded = (x.double() / step).round() * step
        added = 0 if bias is None else bias.double()
        expected = rounded @ weight.T + added
        # float32 divides a little otherwise: a number between two steps may go to the other.
        scale = x.double().abs() @ sizes.T + (0 if bias is None else bias.double().abs())
        unsure = ((x.double() / step) % 1 - 0.5).abs() < 1e-3
        ties = (unsure * step) @ weight.abs().T
        error = (packed(given).double() - expected).abs()
        bound = BOUND[dtype] * (scale + step.amax(dim=1, keepdim=True)) + ties
        assert bool((error <= bound).all())


@with_types
@pytest.mark.parametrize("form", FORMS)
def test_bits_do_not_depend_on_other_rows_or_threads(
    products: Products, form: str, dtype: torch.dtype
) -> None:
    shapes = [shape for shape in LAW_SHAPES if fits(form, shape[1])]
    before = torch.get_num_threads()
    try:
        for shape in shapes:
            packed = FORMS[form](products, shape)
            x = (torch.randn(200, shape[1]) * torch.logspace(-3, 3, 200)[:, None]).to(dtype)
            alone = torch.cat([packed.floats(row) for row in x.split(1)])
            for threads in (1, 2):
                torch.set_num_threads(threads)
                for rows in (2, 3, 4, 5, 8, 12, 13, 16, 17, 31, 32, 33, 48, 64, 65, 100, 200):
                    first = 200 - rows if rows % 2 else 0
                    together = packed.floats(x[first : first + rows])
                    assert torch.equal(together, alone[first : first + rows]), (shape, rows)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("form", ["bfloat16", *(form.name for form in Format if form.bits <= 8)])
def test_bits_of_tiny_numbers_do_not_depend_on_other_rows(products: Products, form: str) -> None:
    """Without a leading bit they are zeros for tile registers: so for all that take their place."""
    shape = (37, 96)
    if form == "bfloat16":
        packed = PackedWeight.from_floats(products, torch.randn(shape).bfloat16(), None)
    else:
        kind = Format[form]
        codes = torch.randint(2**kind.bits, shape, dtype=torch.uint8)
        if kind is Format.int8:
            packed = PackedWeight.from_int8(products, codes, torch.ones(37), None, False)
        else:
            drawn = groups(kind, shape, 32, "")
            packed = PackedWeight.from_groups(products, kind, codes, drawn, None)
    x = (torch.randn(40, 96) * torch.logspace(-39, -36, 40)[:, None]).bfloat16()
    alone = torch.cat([packed.floats(row) for row in x.split(1)])
    assert alone.any(dim=1).sum() > 20
    for rows in (2, 8, 9, 16, 17, 40):
        assert torch.equal(packed.floats(x[-rows:]), alone[-rows:]), rows


@pytest.mark.parametrize("threads", [2, 3, 7, 24])
def test_each_piece_is_multiplied_whoever_takes_it(products: Products, threads: int) -> None:
    """More threads than cores, so that some are late and others take of their runs.

    What nobody multiplied is NaN.
    """
    before = torch.get_num_threads()
    try:
        for shape in ((40, 96), (330, 640), (1000, 576)):
            packed = FORMS["bfloat16"](products, shape)
            for rows in (1, 5, 70):
                x = torch.randn(rows, shape[1]).bfloat16()
                torch.set_num_threads(1)
                expected = packed(x)
                torch.set_num_threads(threads)
                for _ in range(20):
                    assert torch.equal(packed(x), expected), (shape, rows)
    finally:
        torch.set_num_threads(before)


def test_rows_of_zeros_and_no_rows(products: Products) -> None:
    codes = torch.randint(256, (40, 24), dtype=torch.uint8)
    packed = PackedWeight.from_int8(products, codes, torch.ones(40), None, True)
    assert torch.equal(packed(torch.zeros(3, 24)), torch.zeros(3, 40))
    assert packed(torch.zeros(0, 24)).shape == (0, 40)


@pytest.mark.parametrize("value", [torch.nan, -torch.nan, torch.inf, -torch.inf])
def test_a_rows_nan_stays_in_its_row(products: Products, value: float) -> None:
    weight = torch.randn(40, 24)
    codes = torch.randint(256, (40, 24), dtype=torch.uint8)
    for packed in (
        PackedWeight.from_floats(products, weight, None),
        PackedWeight.from_floats(products, weight.bfloat16(), None),
        PackedWeight.from_int8(products, codes, torch.ones(40), None, False),
        PackedWeight.from_int8(products, codes, torch.ones(40), None, True),
        PackedWeight.from_groups(
            products, form := Format.grouped_int8, codes, groups(form, (40, 24), 8, ""), None, True
        ),
    ):
        x = torch.randn(14, 24).to(torch.bfloat16)
        x[3, 5] = value
        finite = packed(x).isfinite()
        assert not bool(finite[3].any())
        assert bool(finite[[0, 1, 2, *range(4, 14)]].all())


def test_the_smallest_numbers_do_not_overflow(products: Products) -> None:
    codes = torch.randint(256, (40, 24), dtype=torch.uint8)
    packed = PackedWeight.from_int8(products, codes, torch.ones(40), None, True)
    assert float(packed(torch.full((2, 24), 1e-38)).abs().max()) < 1e-30


def test_columns_of_x_may_be_strided(products: Products) -> None:
    weight = torch.randn(40, 24)
    x = torch.randn(24, 5).T
    found = PackedWeight.from_floats(products, weight, None)(x)
    assert torch.allclose(found, x @ weight.T, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 8), (33, 16), (300, 72)], ids=str)
def test_rows_can_be_read_back(products: Products, shape: tuple[int, int]) -> None:
    """As by an embedding that shares the weight."""
    ids = torch.randint(shape[0], (14,))[::2]
    codes, scales = torch.randint(256, shape, dtype=torch.uint8), torch.rand(shape[0])
    rounded = PackedWeight.from_int8(products, codes, scales, None, False)
    exact = (codes[ids].float() - 128) * scales[ids, None]
    for dtype in DTYPES:
        assert torch.equal(rounded.rows(ids, dtype), exact.to(dtype))
        weight = torch.randn(shape).to(dtype)
        packed = PackedWeight.from_floats(products, weight, None)
        assert torch.equal(packed.rows(ids, dtype), weight[ids])
    assert rounded.rows(ids[:0], torch.float32).shape == (0, shape[1])


def test_rows_of_joined_weights_are_those_of_each(products: Products) -> None:
    """In any order, of three forms; and what zeros give is the bias, of rounded rows too."""
    weight, bias = torch.randn(20, 64), torch.randn(20)
    codes, scales = torch.randint(256, (33, 64), dtype=torch.uint8), torch.rand(33)
    parts = [
        PackedWeight.from_floats(products, weight, bias),
        PackedWeight.from_int8(products, codes, scales, None, False),
        PackedWeight.from_int8(products, codes, scales, torch.ones(33), True),
    ]
    exact = torch.cat([weight, *[(codes.float() - 128) * scales[:, None]] * 2])
    joined = PackedWeight.joined(parts)
    ids = torch.randperm(86)[:50]
    assert torch.equal(joined.rows(ids, torch.float32), exact[ids])
    biases = torch.cat([bias, torch.zeros(33), torch.ones(33)])
    assert torch.equal(joined.floats(torch.zeros(1, 64))[0], biases)


def test_another_machines_instructions_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot run the kernels for mmx"):
        Products("mmx")


def test_packed_weights_lie_one_after_another() -> None:
    """In memory of their own, aligned, however many there are and however large."""
    memory = HugePages()
    tensors = [memory.zeros((size,)) for size in (3, 1000, 1 << 24, (1 << 24) + 1, 17)]
    for i, tensor in enumerate(tensors):
        tensor.fill_(i)
    assert all(bool((tensor == i).all()) for i, tensor in enumerate(tensors))
    assert all(tensor.data_ptr() % 64 == 0 for tensor in tensors)
    assert tensors[1].data_ptr() == tensors[0].data_ptr() + 64
