"""Starts the process group of a job: the ranks meet, agree, and only then does torch connect them.

So whatever keeps a job from starting (an absent rank, two jobs at one address, a port in use) is
found before the waits of torch's own, which name nobody and take five times as long.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, cast

import torch
from torch import distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]  # documented, but not listed
    PrefixStore,
    Store,
)

from ..devices import set_current_device
from ..errors import CollectivesError, ContextError
from ..facts import Facts
from ..hello import StoreLike, greet
from ..launcher import find_job, has_agent_store
from .control import note_own_store
from .stopwatch import Stopwatch, TimeIsUpError, call_bounded, start_helper
from .store import Meeting, meeting

if TYPE_CHECKING:
    from ..launcher import Launch

__all__ = ["available_backends", "start_group"]

_GRACE_S = 2.0  # seconds after the timeout in which a call that knows more may say so itself
_RIVAL_S = 2.0  # seconds in which a second rank 0 finds out who the first one is
_NEWS_S = 1.0  # seconds in which the others may read of a failure, before rank 0's store ends
_LONGEST = 2_000  # characters of a failure


_COMING = "all ranks to come"
# Seconds that rank 0 may take to close the store of a group that this process has left.
_ENDING_S = 2.0
_started: list[bool] = []  # whether this process has made a group


def start_group(
    launch: Launch, *, backend: str | None, device: torch.device, timeout: float
) -> None:
    """Make the default process group.

    Called by every process of the job.

    Args:
        launch: Which process this is.
        backend: ``None``: gloo for the CPU, torch's default for an accelerator.
        device: Of the tensors.
        timeout: Of the group, and for the whole start, in seconds.

    Raises:
        ContextError: The group cannot be made; the text says why, and which rank it is about.
    """
    on_cpu = device.type == "cpu"
    name = backend or ("gloo" if on_cpu else None)
    _check_backend(name)
    watch = Stopwatch(timeout)
    start = _Start(launch, name, device, watch)
    try:
        call_bounded(start.run, timeout + _GRACE_S, start.look)
    except TimeIsUpError:
        raise ContextError(
            f"RawDDPAdapter: expected {watch.awaited} within {timeout:g} s, got nothing"
            f" {_where(launch)}; see the output of the other ranks, and check that MASTER_ADDR and"
            " MASTER_PORT are those of rank 0"
        ) from None
    finally:
        watch.stop.set()


@dataclass
class _Start:
    """One attempt, which runs in a thread of its own."""

    launch: Launch
    backend: str | None
    device: torch.device
    watch: Stopwatch
    news: str = ""  # why another rank cannot start
    failed: bool = False  # this rank cannot, and tells the others

    def run(self) -> None:
        set_current_device(self.device)  # of this thread
        while not self._met():
            self.watch.stop.wait(0.05)

    def _met(self) -> bool:
        """Make the group; ``False`` if the store was that of the group before, and has ended."""
        try:
            with meeting(self.launch, self.watch) as place:
                store = self._agree(place)
                self._listen(store)
                self._connect(store)
        except CollectivesError:
            raise
        except RuntimeError as error:  # torch's, of the store
            if _started and self.watch.awaited == _COMING and self.watch.gone() < _ENDING_S:
                return False
            raise ContextError(
                f"RawDDPAdapter: the store ended while {self.watch.awaited} was awaited"
                f" {_where(self.launch)}: {error}; see the output of rank 0, which holds it"
            ) from error
        _started[:] = [True]
        return True

    def look(self) -> None:
        """Raise what another rank says of why it cannot start."""
        if self.news:
            raise ContextError(f"{self.news} [told to {_where(self.launch)[1:-1]}]")

    def _listen(self, store: Store) -> None:
        """Read what others say while torch connects: gloo would wait for a rank that failed.

        Over a connection of its own, since torch's waits block the other (torch before 2.6 gives
        none: then the timeout must do), and in a thread, since a frozen store blocks for ever.
        """
        clone: Callable[[], Store] | None = getattr(store, "clone", None)
        if clone is None or self.launch.size == 1:
            return
        line = clone()

        def listen() -> None:
            with suppress(RuntimeError):
                while not (line.check(["failure"]) or self.watch.stop.wait(0.05)):
                    pass
                if not self.failed and line.check(["failure"]):
                    self.news = line.get("failure")[:_LONGEST].decode(errors="replace")
                    line.set(_told(self.launch.rank), "")

        start_helper(listen, "collectives-news")

    def _agree(self, place: Meeting) -> Store:
        """Greet the other ranks, and return a store that this group alone uses.

        torchrun's store outlives its attempts, and any store a group: gloo would read the
        addresses of the one before.
        """
        launch, watch = self.launch, self.watch
        watch.awaited = _COMING
        store = PrefixStore("RawDDPAdapter", place.store)
        facts = Facts(launch.rank, launch.size, job=find_job(os.environ), torch=torch.__version__)
        try:
            greeting = greet(
                cast("StoreLike", store),
                facts,
                timeout=min(_RIVAL_S, watch.left()) if place.taken else watch.left(),
                label="hello",
                stop=watch.stop,
                lasting=has_agent_store(os.environ),
            )
        except CollectivesError as error:
            if place.taken and isinstance(error, TimeoutError):
                raise ContextError(place.taken) from error
            at = f" [at {place.address}]" if place.address else ""
            raise ContextError(f"RawDDPAdapter: {error}{at}") from error
        if place.taken:
            raise ContextError(place.taken)
        return PrefixStore(greeting.run, store)

    def _connect(self, store: Store) -> None:
        self.watch.awaited = f"all ranks to connect over {self.backend or 'the default backend'}"
        # torch names groups by a counter, and a start that failed has left it behind on one rank.
        dist.distributed_c10d._world.group_count = 0
        try:
            dist.init_process_group(
                self.backend,
                store=store,
                rank=self.launch.rank,
                world_size=self.launch.size,
                timeout=timedelta(seconds=self.watch.seconds),
                device_id=None if self.device.type == "cpu" else self.device,  # refused by torch
            )
        except (RuntimeError, ValueError) as error:
            text = f"RawDDPAdapter: {_explain(str(error))} {_where(self.launch)}"
            self._tell(store, text[:_LONGEST])
            raise ContextError(text) from error
        if self.watch.stop.is_set():  # the caller has been told that there is no group
            dist.destroy_process_group()
        else:
            note_own_store()

    def _tell(self, store: Store, text: str) -> None:
        """Tell the others; rank 0, which often holds the store, waits until they know."""
        self.failed = True  # or this rank would hear of itself
        with suppress(RuntimeError):
            if store.add("failures", 1) == 1:
                store.set("failure", text)
            store.set(_told(self.launch.rank), "")
            everyone = [_told(rank) for rank in range(self.launch.size)]
            deadline = time.monotonic() + _NEWS_S
            while self.launch.rank == 0 and time.monotonic() < deadline:
                if store.check(everyone):
                    break
                time.sleep(0.02)


def available_backends() -> list[str]:
    """Return the backends that this torch was built with, but for its fakes."""
    known = [name for name in dist.Backend.backend_list if name not in ("undefined", "fake")]
    return [name for name in known if dist.is_backend_available(name)]


def _check_backend(name: str | None) -> None:
    """Raise unless this torch has the backend: before others wait for this rank."""
    for part in (name or "").split(","):
        backend = part.rpartition(":")[2]
        if backend and not dist.is_backend_available(backend):
            have = available_backends()
            raise ContextError(
                f"RawDDPAdapter: backend={name!r}: expected one that torch {torch.__version__} was"
                f" built with, {' or '.join(have)}, got {backend!r}; leave backend= out"
            )


def _explain(text: str) -> str:
    """Return what torch's text means and what to do, with the text."""
    interfaces = ", ".join(name for _, name in socket.if_nameindex())
    if "Unable to find address for" in text:
        return (
            f"GLOO_SOCKET_IFNAME={os.environ.get('GLOO_SOCKET_IFNAME', '')!r}: expected an"
            f" interface of this host that has an address (it has {interfaces}), got: {text};"
            " correct the variable or leave it out"
        )
    if "closed by peer" in text or "reset by peer" in text:
        return f"another rank ended while gloo connected: {text}; see its own output"
    if "connectFullMesh" in text or "SO_ERROR" in text or "onnect timeout" in text:
        return (
            "gloo cannot connect to the address that another rank gave, which is a loopback"
            f" address where a host's own name resolves to one: {text}; set GLOO_SOCKET_IFNAME to"
            f" the interface by which the hosts reach each other (this one has {interfaces})"
        )
    if "wait timeout" in text:
        return f"a rank came, but did not get as far as to connect: {text}; see its own output"
    return f"torch cannot make the process group: {text}"


def _told(rank: int) -> str:
    """Return the key under which a rank says that it knows of the failure."""
    return f"told/{rank}"


def _where(launch: Launch) -> str:
    return f"(rank {launch.rank} of {launch.size})"
