"""torch, Lightning, and what is installed beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..findings import Finding
from ..snapshot import Snapshot

__all__ = ["CHECKS"]

_OLDEST_LIGHTNING = (2, 2)


def torch_without_gloo(found: Snapshot) -> Iterator[Finding]:
    """CPU tensors need gloo (or MPI)."""
    if {"gloo", "mpi"}.isdisjoint(found.torch.backends):
        have = ", ".join(found.torch.backends) or "no backend"
        yield Finding(
            "problem",
            f"torch {found.torch.version} was built without gloo (it has {have})",
            "install a wheel from pytorch.org, or build torch with USE_GLOO=1",
            "Tensors on the CPU cannot be exchanged. torch says: Distributed package doesn't have"
            " Gloo built in.",
            topic="gloo-built-in",
        )


def gpus_that_torch_cannot_use(found: Snapshot) -> Iterator[Finding]:
    """The driver has GPUs, and torch was built for the CPU, or does not see them."""
    if not found.gpus or found.torch.accelerator:
        return
    visible = found.environ.get("CUDA_VISIBLE_DEVICES")
    if not found.torch.cuda:
        yield Finding(
            "problem",
            f"this host has {len(found.gpus)} GPU(s), but torch {found.torch.version} is built for"
            " the CPU",
            "install the build of torch for your CUDA version (see pytorch.org)",
            "With backend='nccl' torch says: Distributed package doesn't have NCCL built in.",
            ("pytorch/pytorch#159742",),
        )
    elif visible is not None and visible.strip() in ("", "-1"):
        yield Finding(
            "warning",
            f"CUDA_VISIBLE_DEVICES={visible!r} hides all {len(found.gpus)} GPU(s) of this host",
            "unset it, or name the devices that this process may use",
        )
    else:
        yield Finding(
            "problem",
            f"this host has {len(found.gpus)} GPU(s), but torch {found.torch.version} (CUDA"
            f" {found.torch.cuda}) cannot use them",
            "compare the driver's CUDA version in `nvidia-smi` with torch's, and run `python -c"
            " 'import torch; torch.cuda.init()'` for the reason",
        )


def nccl_without_gpu(found: Snapshot) -> Iterator[Finding]:
    """NCCL was set up by hand, and there is nothing that it could run on."""
    tuned = sorted(name for name in found.environ if name.startswith("NCCL_"))
    if tuned and not found.gpus and not found.torch.accelerator:
        shown = ", ".join(tuned[:3]) + (", ..." if len(tuned) > 3 else "")
        yield Finding(
            "warning",
            f"{shown} {'is' if len(tuned) == 1 else 'are'} set, but this process has no GPU",
            "ask the scheduler for GPUs; or leave backend= out, so that gloo is used on the CPU",
            "With backend='nccl' every exchange would fail.",
        )


def hidden_adapters(found: Snapshot) -> Iterator[Finding]:
    """A regular package ``adapters`` (AdapterHub's) comes before our namespace package."""
    if not found.adapters:
        return
    hub = found.packages.get("adapters")
    yield Finding(
        "problem",
        f"`import adapters.raw_ddp` would fail: {found.adapters}",
        "install torch-collectives as a wheel (`pip install torch-collectives`, not -e), or use"
        " another environment" if hub else "run Python where no folder or file adapters/ of yours"
        " comes first in sys.path; reinstall torch-collectives",
        f"AdapterHub's adapters {hub} is installed: both live together only where both are wheels."
        if hub
        else "",
        ("adapter-hub/adapters",) if hub else (),
    )  # fmt: skip


def other_collectives(found: Snapshot) -> Iterator[Finding]:
    """The distribution ``collectives`` is another project, and overwrites this one's files."""
    if "collectives" in found.packages:
        yield Finding(
            "problem",
            f"the distribution collectives {found.packages['collectives']} is installed, which is"
            " not this project",
            "run `pip uninstall collectives` and then `pip install --force-reinstall --no-deps"
            " torch-collectives`",
            "It has an import package of the same name: whichever was installed last is imported.",
        )


def old_lightning(found: Snapshot) -> Iterator[Finding]:
    """Older Trainers and Fabrics lack what the adapters read."""
    for name in ("lightning", "lightning-fabric", "pytorch-lightning"):
        version = found.packages.get(name, "")
        numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
        if version and numbers < _OLDEST_LIGHTNING:
            yield Finding(
                "warning",
                f"{name} {version} is older than what is tested",
                f"run `pip install -U '{name}>=2.2'`",
            )


def two_lightnings(found: Snapshot) -> Iterator[Finding]:
    """A module of one is no module for the Trainer of the other: found when they differ."""
    versions = {n: found.packages[n] for n in ("lightning", "pytorch-lightning")
                if n in found.packages}  # fmt: skip
    if len(set(versions.values())) > 1:
        said = " and ".join(f"{name} {version}" for name, version in versions.items())
        yield Finding(
            "warning",
            f"{said} are both installed",
            "use one of them, and import the module, callbacks and Trainer from it alone",
            "Mixed, they say: `model` must be a `LightningModule`.",
            ("Lightning-AI/pytorch-lightning#17153", "Lightning-AI/pytorch-lightning#19252"),
        )


CHECKS = (
    torch_without_gloo,
    gpus_that_torch_cannot_use,
    nccl_without_gpu,
    hidden_adapters,
    other_collectives,
    old_lightning,
    two_lightnings,
)
