"""Parts of a GPU's multiprocessors in one process, as CUDA streams: for `make gpu-sharing`."""

import ctypes
import math
import sys
from functools import cache
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from triton.language.extra.cuda import smid  # type: ignore[import-untyped]

from omnistage.stages.device.recording import record

PRODUCTS = ((2048, 5120), (4096, 2048), (2048, 128), (2048, 151936))
PRODUCT_ROWS = (1, 8, 24, 32, 64, 128, 512)
NUM_PROGRAMS = 1 << 14  # of a kernel that says where it ran


class Part(NamedTuple):
    """A CUDA stream, and how many multiprocessors run its kernels."""

    stream: Any
    num_sms: int


class Driver:
    """CUDA's driver, for what torch does not offer in all versions: two disjoint green contexts.

    Kernels on a stream of a green context run on its multiprocessors, whichever context the thread
    has; torch's memory, modules and handles stay those of its own context.
    """

    # CUdevResource of cuda.h: a type, 92 bytes of its own, then 48, the first of which are the
    # count of multiprocessors.
    RESOURCE_BYTES, COUNT_AT, RESOURCE_SM = 144, 96, 1
    DEFAULT_STREAM, NON_BLOCKING = 1, 1

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: Any) -> None:
        """Raises RuntimeError with the driver's name of the error."""
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'?').decode()} ({code})")

    def split(self, num_sms: int) -> tuple[Part, Part]:
        """At least so many multiprocessors, and the others; raises RuntimeError."""
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), torch.cuda.current_device())
        whole, part, rest = (ctypes.create_string_buffer(2 * self.RESOURCE_BYTES) for _ in range(3))
        self.call("cuDeviceGetDevResource", device, whole, self.RESOURCE_SM)
        found = torch.cuda.get_device_properties(device.value).multi_processor_count
        if self._count(whole) != found:
            raise RuntimeError(f"the driver tells {self._count(whole)} of {found} multiprocessors")
        number = ctypes.c_uint(1)
        self.call(
            "cuDevSmResourceSplitByCount",
            part, ctypes.byref(number), whole, rest, ctypes.c_uint(0), ctypes.c_uint(num_sms),
        )  # fmt: skip
        if number.value != 1:
            raise RuntimeError(f"no part of {num_sms} multiprocessors can be had")
        return self._part(part, device), self._part(rest, device)

    def _count(self, resource: Any) -> int:
        return int.from_bytes(resource.raw[self.COUNT_AT : self.COUNT_AT + 4], sys.byteorder)

    def _part(self, resource: Any, device: ctypes.c_int) -> Part:
        """The context lives as long as the process."""
        described, context, stream = (ctypes.c_void_p() for _ in range(3))
        self.call("cuDevResourceGenerateDesc", ctypes.byref(described), resource, ctypes.c_uint(1))
        flags = ctypes.c_uint(self.DEFAULT_STREAM)
        self.call("cuGreenCtxCreate", ctypes.byref(context), described, device, flags)
        flags = ctypes.c_uint(self.NON_BLOCKING)
        self.call("cuGreenCtxStreamCreate", ctypes.byref(stream), context, flags, ctypes.c_int(0))
        return Part(torch.cuda.ExternalStream(stream.value), self._count(resource))


@cache
def split(num_sms: int) -> tuple[Part, Part]:
    """The same parts each time: contexts are not given back."""
    torch.zeros(1, device="cuda")  # torch's own context comes first
    return Driver().split(num_sms)


def check(num_sms: int) -> list[str]:
    """A line for each part: where its graphs run, and whether cuBLAS's products are whole there."""
    return [f"green context: {_checked(part)}" for part in split(num_sms)]


def _checked(part: Part) -> str:
    unwritten = different = 0
    generator = torch.Generator("cuda").manual_seed(0)
    for inner, columns in PRODUCTS:
        weight = torch.randn(columns, inner, device="cuda", generator=generator).bfloat16()
        for rows in PRODUCT_ROWS:
            given = torch.randn(rows, inner, device="cuda", generator=generator).bfloat16()
            whole = torch.mm(given, weight.t())
            torch.cuda.synchronize()
            with torch.cuda.stream(part.stream):
                result = torch.full_like(whole, math.nan)
                torch.mm(given, weight.t(), out=result)
            torch.cuda.synchronize()
            unwritten += bool(result.isnan().any())
            different += not torch.equal(result, whole)
    return (
        f"{part.num_sms} multiprocessors, a graph ran on {_num_used(part)}; of "
        f"{len(PRODUCTS) * len(PRODUCT_ROWS)} products {unwritten} have unwritten values, "
        f"{different} are not the whole GPU's"
    )


def _num_used(part: Part) -> int:
    """Of how many multiprocessors the kernels of a graph tell that was recorded on the stream."""
    with torch.cuda.stream(part.stream):
        used = torch.full((NUM_PROGRAMS,), -1, dtype=torch.int32, device="cuda")

        def compute() -> torch.Tensor:
            _tell_where[(NUM_PROGRAMS,)](used)
            return used

        torch.cuda.graph.default_capture_stream = part.stream
        graph, _ = record(compute, None)
        used.fill_(-1)
        graph.replay()
    torch.cuda.synchronize()
    return len(used.unique())


@triton.jit
def _tell_where(used):  # type: ignore[no-untyped-def]
    tl.store(used + tl.program_id(0), smid())
