"""Device profiles: how fast a device computes and moves bytes at best, from public data sheets, or measured here.

Rates are dense (no structured sparsity). `flops` are for matmul-like work by dtype, with tensor cores where there are
any; `vector_flops` for everything else. `overhead_s` is what one op costs however small it is: a typical figure for
eager PyTorch, in no data sheet.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torchatlas.errors import UnknownNameError
from torchatlas.graph.shown import Shown, fact
from torchatlas.registry import did_you_mean
from torchatlas.sections import Facts, Lines, Section
from torchatlas.units import format_bytes, format_flops

T, G, M = 10**12, 10**9, 2**20


@dataclass(frozen=True, repr=False)
class Device(Shown):
    """What a device can do at best."""

    name: str
    flops: dict[str, float] = field(hash=False)  # per second, by dtype
    vector_flops: float  # per second, for all other arithmetic
    bandwidth: float  # bytes per second to and from its memory
    cache_bytes: int  # of the last cache
    memory_bytes: int | None  # of its memory; None if unknown
    link: float  # bytes per second to other devices, one way and back together
    overhead_s: float  # what one op costs however small it is
    source: str  # where the figures come from

    def flops_for(self, dtype: str) -> float:
        """The rate of matmul-like work.

        Args:
            dtype: The short name of a dtype, such as "bfloat16".
        Returns:
            FLOPs per second; a dtype that the data sheet does not name runs as float32.
        """
        return self.flops.get(dtype) or self.flops["float32"]

    def _sections(self) -> Iterator[Section]:
        yield Lines([f"{self.name}: {self.source}"])
        rates = [(f"matmul-like, {dtype}", f"{format_flops(rate)}/s") for dtype, rate in self.flops.items()]
        yield Facts(
            [
                *rates,
                ("other arithmetic", f"{format_flops(self.vector_flops)}/s"),
                ("memory bandwidth", f"{format_bytes(self.bandwidth)}/s"),
                ("link to other devices", f"{format_bytes(self.link)}/s"),
                ("cache", fact(self.cache_bytes, "cache_bytes")),
                ("memory", fact(self.memory_bytes, "memory_bytes")),
                ("overhead of an op", fact(self.overhead_s, "overhead_s")),
            ]
        )


def _gpu(
    name: str,
    source: str,
    *,
    fp32: float,
    half: float,
    gb_s: float,
    cache: float,
    memory: float,
    link: float,
    fp64: float = 0,
    byte: float = 0,
    bf16: bool = True,
    overhead_s: float = 5e-6,
) -> Device:
    """Rates in TFLOP/s, bandwidths in GB/s, cache in MiB, memory in GB."""
    flops = {"float32": fp32 * T, "float16": half * T, "float64": (fp64 or fp32 / 32) * T}
    flops |= {"bfloat16": half * T} if bf16 else {}
    flops |= {dtype: byte * T for dtype in ("int8", "float8_e4m3fn", "float8_e5m2") if byte}
    return Device(name, flops, fp32 * T, gb_s * G, int(cache * M), int(memory * G), link * G, overhead_s, source)


def _cpu(name: str, source: str, *, fp32: float, gb_s: float, cache: float, half: float = 0) -> Device:
    flops = {"float32": fp32 * T, "float64": fp32 * T / 2} | ({"bfloat16": half * T} if half else {})
    return Device(name, flops, fp32 * T, gb_s * G, int(cache * M), None, 32 * G, 2e-6, source)


_NVIDIA, _AMD, _GOOGLE = "NVIDIA data sheet", "AMD data sheet", "Google Cloud TPU documentation"
_FROM_CORES = "vendor's specification: cores x base clock x FLOPs per cycle; channels x memory speed"

# The default is a round number of each kind, so that a report is the same on every machine.
GENERIC = _gpu(
    "generic", "round figures of a datacenter GPU; no real device",
    fp32=20, half=300, byte=600, fp64=10, gb_s=2000, cache=40, memory=80, link=600,
)  # fmt: skip

# fmt: off
DEVICES: dict[str, Device] = {device.name: device for device in (
    GENERIC,
    _gpu("v100", f"{_NVIDIA}: V100 SXM2 32GB", fp64=7.8, fp32=15.7, half=125, gb_s=900, cache=6, memory=32, link=300,
         bf16=False),
    _gpu("t4", f"{_NVIDIA}: T4", fp32=8.1, half=65, byte=130, gb_s=320, cache=4, memory=16, link=32, bf16=False),
    _gpu("a10", f"{_NVIDIA}: A10", fp32=31.2, half=125, byte=250, gb_s=600, cache=6, memory=24, link=64),
    _gpu("a100-40gb", f"{_NVIDIA}: A100 SXM 40GB", fp64=19.5, fp32=19.5, half=312, byte=624, gb_s=1555, cache=40,
         memory=40, link=600),
    _gpu("a100-80gb", f"{_NVIDIA}: A100 SXM 80GB", fp64=19.5, fp32=19.5, half=312, byte=624, gb_s=2039, cache=40,
         memory=80, link=600),
    _gpu("l4", f"{_NVIDIA}: L4", fp32=30.3, half=121, byte=242, gb_s=300, cache=48, memory=24, link=64),
    _gpu("l40s", f"{_NVIDIA}: L40S", fp32=91.6, half=362, byte=733, gb_s=864, cache=96, memory=48, link=64),
    _gpu("h100-pcie", f"{_NVIDIA}: H100 PCIe", fp64=51, fp32=51, half=756, byte=1513, gb_s=2000, cache=50, memory=80,
         link=600),
    _gpu("h100-sxm", f"{_NVIDIA}: H100 SXM", fp64=67, fp32=67, half=989, byte=1979, gb_s=3350, cache=50, memory=80,
         link=900),
    _gpu("h200-sxm", f"{_NVIDIA}: H200 SXM", fp64=67, fp32=67, half=989, byte=1979, gb_s=4800, cache=50, memory=141,
         link=900),
    _gpu("b200-sxm", f"{_NVIDIA}: HGX B200, per GPU", fp64=37, fp32=75, half=2250, byte=4500, gb_s=7700, cache=126,
         memory=180, link=1800),
    _gpu("rtx-3090", f"{_NVIDIA}: GA102 white paper", fp32=35.6, half=71, byte=284, gb_s=936, cache=6, memory=24,
         link=32),
    _gpu("rtx-4090", f"{_NVIDIA}: Ada white paper", fp32=82.6, half=165, byte=330, gb_s=1008, cache=72, memory=24,
         link=32),
    _gpu("mi250x", f"{_AMD}: Instinct MI250X", fp64=47.9, fp32=47.9, half=383, byte=383, gb_s=3277, cache=16,
         memory=128, link=800),
    _gpu("mi300x", f"{_AMD}: Instinct MI300X", fp64=81.7, fp32=163.4, half=1307, byte=2615, gb_s=5300, cache=256,
         memory=192, link=896),
    _gpu("tpu-v4", _GOOGLE, fp32=34, half=275, byte=275, gb_s=1228, cache=128, memory=32, link=300, overhead_s=1e-6),
    _gpu("tpu-v5e", _GOOGLE, fp32=25, half=197, byte=394, gb_s=819, cache=128, memory=16, link=200, overhead_s=1e-6),
    _gpu("tpu-v5p", _GOOGLE, fp32=57, half=459, byte=918, gb_s=2765, cache=128, memory=95, link=600, overhead_s=1e-6),
    _cpu("xeon-8380", f"Intel {_FROM_CORES} (40 x 2.3 GHz x 64, 8 x DDR4-3200)", fp32=5.9, gb_s=204.8, cache=60),
    _cpu("xeon-8480+", f"Intel {_FROM_CORES} (56 x 2.0 GHz x 64, AMX 2048, 8 x DDR5-4800)", fp32=7.2, half=229,
         gb_s=307.2, cache=105),
    _cpu("epyc-7763", f"AMD {_FROM_CORES} (64 x 2.45 GHz x 32, 8 x DDR4-3200)", fp32=5.0, gb_s=204.8, cache=256),
    _cpu("epyc-9654", f"AMD {_FROM_CORES} (96 x 2.4 GHz x 32, 12 x DDR5-4800)", fp32=7.4, gb_s=460.8, cache=384),
)}
# fmt: on


_TORCH_DEVICES = ("cpu", "cuda", "mps", "xpu", "meta")


def device_named(device: Device | str | None) -> Device:
    """A profile by name; None is the generic one, "here" measures this machine (once per process, a few seconds)."""
    if device is None:
        return GENERIC
    if isinstance(device, Device):
        return device
    if device == "here":
        return measure_here()
    name = str(device)  # maybe a torch.device
    profile = DEVICES.get(name.lower().replace(" ", "-").replace("_", "-"))
    if profile is None:
        hint = did_you_mean(name, DEVICES) or "."
        if name.partition(":")[0] in _TORCH_DEVICES:
            hint = ": here a device is the profile of one, its speeds; the graph says where it ran."
        raise UnknownNameError(f"No device profile is named {name!r}{hint} Known: here, {', '.join(DEVICES)}.")
    return profile


@functools.cache
def measure_here() -> Device:
    """This machine's CPU as PyTorch reaches it now: the best of several tries of large, simple ops."""
    import torch

    side, big, small, flops = 512, torch.ones(32 * M), torch.ones(1), {}
    with torch.inference_mode():
        for dtype in ("float32", "float64", "bfloat16"):
            a = torch.ones(side, side, dtype=getattr(torch, dtype))
            flops[dtype] = 2 * side**3 / _best(functools.partial(torch.mm, a, a), 0.5)
        copied = torch.empty_like(big)
        bandwidth = 2 * big.nbytes / _best(functools.partial(copied.copy_, big), 0.5)
        near = torch.ones(2**15)
        vector = near.numel() * 8 / _best(functools.partial(_eight_adds, near, torch.empty_like(near)), 0.3)
        overhead = _best(functools.partial(torch.add, small, small), 0.1)
    return Device(
        "here", flops, vector, bandwidth, 32 * M, None, bandwidth, overhead,
        f"measured: torch {torch.__version__}, {torch.get_num_threads()} threads",
    )  # fmt: skip


def _eight_adds(values: Any, out: Any) -> None:
    for _ in range(8):
        out.add_(values)


def _best(job: Callable[[], Any], seconds: float) -> float:
    """The shortest time of as many tries as fit."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return min(times)
