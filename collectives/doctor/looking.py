"""Taking a snapshot: of this process, its host and its network. Nothing here waits for long."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from ..errors import ArgumentError
from ..folder import private_folder
from ..launcher import find_launch, has_agent_store
from ..settings import SETTINGS
from .gpus import find_gpus
from .network import find_interfaces, look_up, probe_port
from .snapshot import Port, Snapshot, Torch

__all__ = ["look"]

_DISTRIBUTIONS = (
    "torch-collectives", "torch", "numpy", "lightning", "lightning-fabric", "pytorch-lightning",
    "accelerate", "deepspeed", "ray", "adapters", "collectives",
)  # fmt: skip


def look(environ: Mapping[str, str]) -> Snapshot:
    """Return what this process finds, within a few seconds whatever the resolver does.

    No framework is imported, and no accelerator is used.

    Args:
        environ: The process's environment.
    """
    limits = _limits()
    gpus, links = find_gpus()
    address, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    settings = (_what_is_wrong_with_a_setting(read, environ) for read in SETTINGS.values())
    return Snapshot(
        host=socket.gethostname(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        environ=dict(environ),
        packages=_packages(),
        adapters=_what_hides_the_adapters(),
        torch=find_torch(),
        gpus=gpus,
        links=links,
        cores=_cores(),
        host_cores=os.cpu_count() or 1,
        load=_load(),
        interfaces=find_interfaces(),
        name=look_up(socket.gethostname()),
        master=look_up(address) if address else None,
        port=None if port is None else _port(environ, address, port),
        shared_memory=_shared_memory(),
        open_files=limits.get("NOFILE"),
        locked_memory=limits.get("MEMLOCK"),
        infiniband=Path("/sys/class/infiniband").is_dir(),
        folder=_what_is_wrong_with_the_folder(),
        has_doors=_has_doors(),
        settings=tuple(filter(None, settings)),
    )


def _has_doors() -> bool:
    from ..transport.same_host import Door

    door = Door.open()
    if door is not None:
        door.close()
    return door is not None


def find_torch() -> Torch:
    """Return how torch was built, and the accelerators that it sees."""
    import torch

    from ..devices import accelerator_kind
    from ..transport.start import available_backends

    kind = accelerator_kind()
    module = None if kind is None else torch.get_device_module(kind)
    count = 0 if module is None else module.device_count()
    named = getattr(module, "get_device_name", None)
    devices: tuple[str, ...] = ()
    with suppress(RuntimeError):  # a driver in trouble
        devices = tuple(named(i) if named is not None else f"{kind}:{i}" for i in range(count))
    return Torch(
        version=str(torch.__version__),
        backends=tuple(sorted(available_backends())),
        cuda=torch.version.cuda or torch.version.hip or "",
        accelerator=kind or "",
        devices=devices,
    )


def _port(environ: Mapping[str, str], address: str | None, port: str) -> Port:
    """Probe as the rank that this process is: rank 0 listens there, others connect."""
    launch = find_launch(environ)
    if has_agent_store(environ):
        return Port(port, "not tried")  # torchrun itself listens there
    serves = launch is not None and launch.rank == 0
    return probe_port(port, None if serves else address)


def _packages() -> dict[str, str]:
    versions = {name: _version(name) for name in _DISTRIBUTIONS}
    return {name: version for name, version in versions.items() if version}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _what_hides_the_adapters() -> str:
    """Return the folder of another package of that name that comes first; importing nothing."""
    try:
        spec = importlib.util.find_spec("adapters")
    except (ImportError, ValueError):
        spec = None
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    if any((Path(place) / "raw_ddp.py").is_file() for place in places):
        return ""
    if spec is None:
        return "no package of that name is found"
    return f"another package of that name is found first: {spec.origin or places}"


def _limits() -> dict[str, int]:
    try:
        import resource
    except ImportError:  # Windows
        return {}
    found = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0]
             for name in ("NOFILE", "MEMLOCK") if hasattr(resource, f"RLIMIT_{name}")}  # fmt: skip
    return {name: limit for name, limit in found.items() if limit != resource.RLIM_INFINITY}


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _load() -> float:
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):  # Windows; a container that hides it
        return 0.0


def _shared_memory() -> tuple[int, int] | None:
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError:
        return None
    return usage.free, usage.total


def _what_is_wrong_with_the_folder() -> str:
    try:
        private_folder()
    except OSError as error:
        return str(error)
    return ""


def _what_is_wrong_with_a_setting(
    read: Callable[[Mapping[str, str]], object], environ: Mapping[str, str]
) -> str:
    try:
        read(environ)
    except ArgumentError as error:
        return str(error)
    return ""
