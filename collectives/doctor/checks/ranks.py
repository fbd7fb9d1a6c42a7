"""What the ranks of a job find differently, and should not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ...record.words import ranks_in_words
from ..findings import Finding
from ..rank import RankReport

__all__ = ["differences"]

_REMEDIES = {
    "size": "start all ranks with the same WORLD_SIZE",
    "torch": "install one version of torch on all hosts",
    "torch-collectives": "install one version of torch-collectives on all hosts",
    "python": "use one version of Python on all hosts",
    "device": "give every rank the same kind of device (CUDA_VISIBLE_DEVICES, the build of torch)",
}
_FATAL = {"size", "torch", "torch-collectives", "device"}


def differences(reports: Sequence[RankReport]) -> list[Finding]:
    """Return in what the ranks differ.

    Args:
        reports: Of those ranks that reported.
    """
    return [*_facts_that_differ(reports), *_shared_devices(reports)]


def _facts_that_differ(reports: Sequence[RankReport]) -> Iterator[Finding]:
    for fact, remedy in _REMEDIES.items():
        by_value: dict[str, list[int]] = defaultdict(list)
        for report in (report for report in reports if report.facts):
            by_value[report.facts.get(fact, "")].append(report.rank)
        if len(by_value) > 1:
            said = "; ".join(f"{v or 'none'} on {ranks_in_words(r)}" for v, r in by_value.items())
            yield Finding(
                "problem" if fact in _FATAL else "warning", f"the ranks differ in {fact}: {said}",
                remedy,
            )  # fmt: skip


def _shared_devices(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """Two ranks of one host on one accelerator: NCCL refuses that."""
    by_device: dict[str, list[int]] = defaultdict(list)
    for report in reports:
        if identity := report.facts.get("device id", ""):
            by_device[identity].append(report.rank)
    for ranks in by_device.values():
        if len(ranks) > 1:
            yield Finding(
                "problem",
                f"{ranks_in_words(ranks)} use one and the same GPU",
                "let every rank see, or choose, a device of its own: CUDA_VISIBLE_DEVICES and"
                " LOCAL_RANK",
                "NCCL says: Duplicate GPU detected.",
                ("NVIDIA/nccl#1241", "verl-project/verl#161"),
                tuple(ranks),
            )
