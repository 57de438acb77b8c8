"""Which device computes, and why not another."""

from __future__ import annotations

import logging
from importlib.util import find_spec

import torch

from quire.core.errors import DOCTOR, ConfigError
from quire.kernels.gpu.support import check_device

logger = logging.getLogger(__name__)


def choose_device(name: str) -> torch.device:
    """The device called ``name``: "cpu", "cuda", or "auto", a GPU if one can be used.

    Raises:
        ConfigError: "cuda" was asked for and cannot be used; the message says why.
    """
    if name == "cpu" or (name == "auto" and torch.version.cuda is None):
        return torch.device("cpu")
    try:
        return _cuda_device()
    except ConfigError as error:
        if name == "cuda":
            raise
        if torch.cuda.device_count():
            logger.warning("computing on the CPU: %s", error)
        return torch.device("cpu")


def _cuda_device() -> torch.device:
    if torch.version.cuda is None:
        raise ConfigError(
            f"device cuda: PyTorch {torch.__version__} was built without CUDA; install a build "
            "with it (https://pytorch.org/get-started), or choose --device cpu"
        )
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        device = torch.device("cuda", torch.cuda.current_device())
        traits = torch.cuda.get_device_properties(device)
    except (RuntimeError, AssertionError) as error:  # no GPU, no driver, or one that is too old
        raise ConfigError(
            f"device cuda: {str(error).splitlines()[0]} (PyTorch was built for CUDA "
            f"{torch.version.cuda}). --device cpu works; {DOCTOR}"
        ) from error
    check_device(traits.name, (traits.major, traits.minor))
    if find_spec("triton") is None:
        raise ConfigError(
            "device cuda: the GPU kernels need Triton, which PyTorch's builds for Linux bring "
            "along: pip install triton, or choose --device cpu"
        )
    return device
