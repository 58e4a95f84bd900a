"""Describes the environment: versions, devices, memory, and missing packages."""

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata

import torch

from facet.doctor.findings import Finding
from facet.version import __version__

# Name on the package index: what cannot be done without it.
_NEEDED = {
    "torch": "anything",
    "numpy": "anything",
    "safetensors": "reading weights",
    "tokenizers": "text",
    "jinja2": "chat templates",
    "xgrammar": "structured output",
    "msgspec": "an engine in its own process",
    "pyzmq": "an engine in its own process",
    "starlette": "serving",
    "uvicorn": "serving",
    "huggingface_hub": "downloading models",
}
_NEEDED_ON_A_GPU = {"triton": "kernels on a GPU"}
_OPTIONAL = {"matplotlib": "--plot"}


def describe() -> dict[str, str]:
    """Versions and devices by name; for a missing package, the word missing."""
    described = {
        "facet": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpu": f"{os.cpu_count()} cores, {_gib(os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))} of memory, "
        f"{_gib(os.sysconf('SC_AVPHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))} of it free",
    }
    if torch.cuda.is_available():
        described["cuda"] = str(torch.version.cuda)
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            major, minor = torch.cuda.get_device_capability(index)
            described[f"cuda:{index}"] = (
                f"{torch.cuda.get_device_name(index)}, compute capability {major}.{minor}, {_gib(total)} of memory, "
                f"{_gib(free)} of it free"
            )
    for package in (*_NEEDED, *_NEEDED_ON_A_GPU, *_OPTIONAL):
        described[package] = _version(package) or "missing"
    return described


def check_environment(described: Mapping[str, str]) -> Iterator[Finding]:
    has_gpu = any(name.startswith("cuda:") for name in described)
    needed = {**_NEEDED, **(_NEEDED_ON_A_GPU if has_gpu else {})}
    missing = [name for name in needed if described[name] == "missing"]
    notes = [f"{name} is missing, needed for {needed[name]}: pip install {name}" for name in missing]
    if not has_gpu:
        notes.append("no GPU found: the CPU is used")
    notes += [
        f"{name} is missing, needed for {use}: pip install {name}"
        for name, use in _OPTIONAL.items()
        if described[name] == "missing"
    ]
    yield Finding(check="environment", status="fail" if missing else "pass", note="; ".join(notes))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
