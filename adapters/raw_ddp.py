"""Where a plain script runs: under torchrun, srun, mpirun, ``mp.spawn``, or over a group it made.

Anything that initialises ``torch.distributed`` by itself (Ray Train, Accelerate, DeepSpeed) is an
existing group for this adapter.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

from collectives.binding import release
from collectives.devices import pick_device, set_current_device, with_index
from collectives.discovery import GroupChoice
from collectives.errors import ArgumentError, ContextError, PeerLost
from collectives.guard import known_cause, leave_all, tell_all
from collectives.launcher import Launch, find_launch, unfinished_launch
from collectives.renewal import successor
from collectives.runtime import bind_group, default_group, refuse_data_worker
from collectives.transport.control import meet_at_end
from collectives.transport.start import start_group

if TYPE_CHECKING:
    from types import TracebackType

    from torch.distributed import ProcessGroup

    from collectives.context import Context

__all__ = ["RawDDPAdapter"]

_HINT = "call torch.distributed.init_process_group() before, or use `with RawDDPAdapter() as ...:`"
_ALONE = 2  # references to what one variable and a call refer to
_DEFAULT_TIMEOUT = 1800.0  # torch's own default for gloo, in seconds

# Groups that were destroyed here and that something else refers to. A DistributedDataParallel that
# outlives its group would be the last to hold it, and gloo's destructor would join its threads
# while Python holds the GIL, which can hang for ever (pytorch/pytorch#56297).
_ended: list[ProcessGroup] = []


class RawDDPAdapter:
    """Finds rank, size, device and group of a plain script.

    Directly, where a process group exists or the process runs alone::

        exchange = Exchange(Ring, RawDDPAdapter())

    As a context manager, which joins the job that a launcher started (torchrun, srun, mpirun) and
    leaves it at a clean end; an existing group is used and left alone::

        with RawDDPAdapter() as adapter:
            exchange = Exchange(Ring, adapter)

    In a function that ``torch.multiprocessing.spawn`` runs, give ``rank=`` and ``size=``. A process
    that no launcher started has size 1 and no group: every exchange is a local copy.

    Args:
        group: Exchange over this group; ``None``: the default one.
        device: Where tensors live; ``None``: the device of the group, or the accelerator of this
            process if there is one.
        backend: For the group that is made here; ``None``: gloo for the CPU, torch's default for
            an accelerator.
        timeout: Of the group that is made here, in seconds, its start included.
        rank: Of this process, where no launcher says it.
        size: Number of processes, where no launcher says it.
        alone: Exchange with nobody where several processes run, on purpose.

    Raises:
        ArgumentError: An option is out of range, or two contradict each other.
    """

    def __init__(
        self,
        group: ProcessGroup | None = None,
        *,
        device: torch.device | str | None = None,
        backend: str | None = None,
        timeout: float | None = None,
        rank: int | None = None,
        size: int | None = None,
        alone: bool = False,
    ) -> None:
        if timeout is not None and not 0 < timeout < float("inf"):
            raise ArgumentError(
                f"RawDDPAdapter: timeout: expected seconds above 0, got {timeout!r}"
            )
        self._choice = GroupChoice(group, alone=alone)
        self._device = _device(device)
        self._backend = backend
        self._timeout = _DEFAULT_TIMEOUT if timeout is None else timeout
        self._given = _given_launch(rank, size)
        self._made: ProcessGroup | None = None
        self._lost = ""  # why this adapter must not take a process without a group for a single one

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what belongs to this process: the group made here, and the rank."""
        return {**self.__dict__, "_made": None, "_given": None, "_process": os.getpid()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Remember when the adapter came from another process."""
        if state.pop("_process") != os.getpid():
            state["_lost"] = "it was pickled in another process"
        self.__dict__.update(state)

    def __enter__(self) -> RawDDPAdapter:
        """Join the job that the launcher started, unless this process has a group already.

        Called by every process of the job.

        Raises:
            ContextError: The launcher's variables are incomplete; the ranks did not all come in
                time; they disagree on the size; two processes claim one rank, or two jobs meet at
                one address; the address is in use or cannot be reached; torch cannot make the
                group; or this is a DataLoader worker. The text says which, and what to do.
        """
        refuse_data_worker("script")
        if default_group() is None and not self._choice.alone:
            launch = self._launch()
            if launch is not None:
                self._join(launch)
                self._made = default_group()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for all ranks and destroy the group, if it was made here and the block ended well.

        After an error it stays: peers may be stuck in it, and the process is about to end. They are
        told, so that their exchanges fail at once.

        Raises:
            PeerLost: Another rank did not come to the end of its block.
        """
        if error is not None and not (isinstance(error, SystemExit) and not error.code):
            tell_all(error)
        made, self._made = self._made, None
        if made is None or kind is not None or default_group() is not made:
            return
        newest = successor(made)  # Exchange.renew() may have left the one made here
        _ended.extend({made, newest})
        leave_all("is at the end of its block")
        try:
            # A rank that leaves at once closes connections that others still read.
            meet_at_end(newest, self._timeout)
        except RuntimeError as failure:
            raise PeerLost(
                "RawDDPAdapter: at the end of the block: expected all ranks, but one ended or"
                f" failed before (says rank {made.rank()} of {made.size()}):"
                f" {known_cause() or str(failure).partition('. This is')[0]}; see its output"
            ) from failure
        dist.destroy_process_group()
        for group in (made, newest):
            release(group)
        del made, newest, group
        _let_go()

    def context(self) -> Context:
        """Return where this process stands now.

        Raises:
            ContextError: A launcher started several processes and there is no group yet; the group
                that this adapter used is gone; the launcher's variables are incomplete; this
                process is not a member of the group; or it is a DataLoader worker. See
                ``collectives.runtime.bind``.
        """
        refuse_data_worker("script")
        if default_group() is None and not self._choice.alone:
            self._check_single()
        context = bind_group(
            self._choice.resolve(),
            self._device,
            source="script",
            hint=_HINT,
            claim=self._given,
            alone=self._choice.alone,
        )
        if context.size > 1:
            self._lost = f"its group of {context.size} ranks was destroyed"
        return context

    def _check_single(self) -> None:
        """Raise unless a process without a group can be one by itself."""
        if self._lost:
            raise ContextError(
                f"RawDDPAdapter: {self._lost}: expected a default process group, got none; {_HINT},"
                " or make a RawDDPAdapter(alone=True) to exchange with nobody"
            )
        self._launch()  # raises where the launcher's variables are incomplete

    def _launch(self) -> Launch | None:
        if self._given is not None:
            return self._given
        missing = unfinished_launch(os.environ)
        if missing:
            raise ContextError(
                f"RawDDPAdapter: {missing}: expected both RANK and WORLD_SIZE, or neither; start"
                " the script with torchrun, or set both, with MASTER_ADDR and MASTER_PORT"
            )
        return find_launch(os.environ)

    def _join(self, launch: Launch) -> None:
        device = self._device
        if device is None:
            on_cpu = self._backend in ("gloo", "mpi")
            device = torch.device("cpu") if on_cpu else pick_device(launch.local_rank)
        set_current_device(device)
        start_group(launch, backend=self._backend, device=device, timeout=self._timeout)


def _let_go() -> None:
    """Forget groups that nothing else refers to: each has threads and sockets."""
    for position in reversed(range(len(_ended))):
        group = _ended.pop(position)
        if sys.getrefcount(group) > _ALONE:
            _ended.append(group)
        del group


def _given_launch(rank: int | None, size: int | None) -> Launch | None:
    if rank is None and size is None:
        return None
    if rank is None or size is None or not 0 <= rank < size:
        raise ArgumentError(
            f"RawDDPAdapter: expected both rank= and size= with 0 <= rank < size, got rank={rank!r}"
            f" and size={size!r}; or leave both out under a launcher"
        )
    return Launch("the script", rank, size, rank, 0, one_host=True, job="")


def _device(device: torch.device | str | None) -> torch.device | None:
    if device is None:
        return None
    try:
        return with_index(torch.device(device))
    except RuntimeError as error:
        raise ArgumentError(
            'RawDDPAdapter: device: expected a torch.device or its name, such as "cpu" or'
            f' "cuda:0", got {device!r}'
        ) from error
