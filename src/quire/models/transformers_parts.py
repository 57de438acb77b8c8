"""Norms and MLPs of an architecture in ``transformers``, computed by our kernels.

What a module is, nothing says: so it is computed beside what it might be, on random numbers. What
is not found to be the same stays as it is.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from quire.kernels.mlps import ACTIVATIONS, Activation
from quire.kernels.ops import Kernels, Norm
from quire.models.transformers_products import Head, HeadRows, JoinedProduct, Product, Running

_LOG = logging.getLogger(__name__)

_ROWS, _WIDE, _SPAN = 5, 64, 3.0  # of random numbers
# Norm of the difference over norm of what is right, by rounding alone.
_TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
_SMALL = 1e-3  # of numbers whose squares are not far above what is added to them
_USUAL_EPS = (1e-5, 1e-6)  # which some code has in the place of a field
_MOST_EPS = 1e-2


class Normed(nn.Module):
    """Replaces a norm."""

    def __init__(self, norm: Norm, weight: nn.Parameter | None, running: Running) -> None:
        super().__init__()
        self.norm, self.running = norm, running
        self.weight = weight  # for code that wants to know its type

    def forward(self, x: Tensor) -> Tensor:
        return self.running.kernels.norm(x.reshape(-1, x.shape[-1]), self.norm).view(x.shape)


class FusedMLP(nn.Module):
    """Replaces an MLP: down(activation(up(x))), or with a gate in front of ``up``."""

    def __init__(
        self, up: JoinedProduct, down: JoinedProduct, activation: Activation, running: Running
    ) -> None:
        super().__init__()
        self.up, self.down = up, down
        self.activation, self.running = activation, running
        self.divided = False  # whether ranks have parts

    def forward(self, x: Tensor) -> Tensor:
        up = self.up.rows(x.reshape(-1, x.shape[-1]))
        inner = self.running.kernels.activate(up, self.activation)
        return self.down.rows(inner).view(*x.shape[:-1], -1)


def put_parts(causal_lm: Any, running: Running, exact: Kernels) -> None:
    """Put norms and MLPs in the place of modules that are such. exact: kernels of float32."""
    found: Counter[str] = Counter()
    known: dict[int, nn.Module] = {}
    for parent, attribute, module in list(_modules(causal_lm)):
        own = known.get(id(module)) or _norm(module, causal_lm.dtype, running, exact)
        own = own or _mlp(module, causal_lm.dtype, running, exact)
        if own is not None:
            known[id(module)] = own
            setattr(parent, attribute, own)
            found[type(module).__name__] += 1
    _LOG.info("computed by kernels: %s", ", ".join(found) or "no norms or MLPs")


def _modules(causal_lm: Any) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """All that are called with their input alone, and of whom they are which attribute."""
    for parent in causal_lm.modules():
        for attribute, module in parent.named_children():
            ours = isinstance(module, Product | Head | HeadRows)
            if not ours and len(inspect.signature(module.forward).parameters) == 1:
                yield parent, attribute, module


def _norm(
    module: nn.Module, dtype: torch.dtype, running: Running, exact: Kernels
) -> nn.Module | None:
    """The same norm; None: it is another thing."""
    tensors = dict(module.named_parameters(recurse=False))
    eps = [v for v in vars(module).values() if isinstance(v, float) and 0 < v <= _MOST_EPS]
    others = [*module.children(), *module.buffers(), *(tensors.keys() - {"weight", "bias"})]
    if others or any(
        one.dim() != 1 or one.dtype not in (dtype, torch.float32) for one in tensors.values()
    ):
        return None
    weight, bias = tensors.get("weight"), tensors.get("bias")
    x = random_rows(_ROWS if weight is None else len(weight), torch.float32)
    x[::2] *= _SMALL
    in_floats = copy.copy(module)
    in_floats._parameters = {name: nn.Parameter(one.float()) for name, one in tensors.items()}
    for norm in _norms(weight, bias, (*eps, *_USUAL_EPS)):
        wide = norm._replace(weight=_float(norm.weight), bias=_float(norm.bias))
        if same(in_floats, lambda x, wide=wide: exact.norm(x, wide), x):
            own = Normed(norm, weight, running)
            return own if same(module, own, x.to(dtype)) else None
    return None


def _norms(weight: Tensor | None, bias: Tensor | None, eps: Iterable[float]) -> Iterator[Norm]:
    """What a norm may be."""
    width = 0 if weight is None else len(weight)
    for one in dict.fromkeys(eps):
        for centred in (False, True):
            yield Norm(width, weight, one, bias, centred)
            if weight is not None:  # in float32, since 1 + w has more digits than w
                yield Norm(width, weight.float() + 1, one, _float(bias), centred)


def _mlp(
    module: nn.Module, dtype: torch.dtype, running: Running, exact: Kernels
) -> nn.Module | None:
    """The same MLP; None: it is another thing."""
    parts = [part for part in module.children() if not isinstance(part, nn.Dropout)]
    products = [part for part in parts if isinstance(part, Product)]
    others = [part for part in parts if not isinstance(part, Product)]
    joined = list(dict.fromkeys(part.joined for part in products))
    if len(joined) != 2 or len(others) != 1 or list(module.parameters()):
        return None
    if sum(len(one.sizes) for one in joined) != len(products):
        return None  # others are given the same
    activation = activation_of(others[0], exact)
    if activation is None:
        return None
    for up, down in (joined, joined[::-1]):
        gated = len(up.sizes) == 2
        x = random_rows(up.inputs, dtype)
        if sum(up.sizes) == down.inputs * (1 + gated) and len(down.sizes) == 1:
            own = FusedMLP(up, down, Activation(activation, gated), running)
            if same(module, own, x):
                return own
    return None


def activation_of(module: Any, exact: Kernels) -> str | None:
    """The name that configs have for it; None: it is another thing."""
    x = random_rows(_WIDE, torch.float32) * _SPAN
    for name in ACTIVATIONS:
        if same(module, lambda x, name=name: exact.activate(x, Activation(name)), x):
            return name
    return None


def same(
    module: Callable[..., object],
    own: Callable[..., Tensor],
    x: Tensor,
    *others: Tensor,
    tolerance: float | None = None,
) -> bool:
    """Whether both give the same of x, but for rounding; or else with this error at most."""
    try:
        with torch.inference_mode():
            wanted = module(x.clone(), *others)
    except Exception:  # the architecture's code may raise anything
        return False
    if not isinstance(wanted, Tensor) or wanted.dtype != x.dtype:
        return False
    with torch.inference_mode():
        got = own(x.clone(), *others)
    return alike(got, wanted, tolerance)


def alike(got: Tensor, wanted: Tensor, tolerance: float | None = None) -> bool:
    """Whether both are the same [..., n], but for rounding; or else with this error at most."""
    if got.shape != wanted.shape:
        return False
    error = (got.double() - wanted.double()).norm(dim=-1)
    most = _TOLERANCE[got.dtype] if tolerance is None else tolerance
    return bool((error <= most * wanted.double().norm(dim=-1)).all())


def random_rows(width: int, dtype: torch.dtype) -> Tensor:
    """[rows, width], the same each time."""
    return torch.randn(_ROWS, width, generator=torch.Generator().manual_seed(0)).to(dtype)


def _float(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.float()
