"""Binding an Exchange to a group, at first use and again after the group is gone.

Nothing here is ever pickled or copied: an Exchange drops its binding when it is.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from . import runtime
from .agree import agreement
from .deadline import Deadline
from .engine import Engine
from .errors import ContextError, TopologyError
from .facts import shortened
from .guard import attach, stay_unwatched
from .record import FlightRecord, take
from .renewal import successor
from .settings import check_settings
from .state import GroupState
from .topology import Topology
from .transport.group import GroupTransport
from .transport.local import LocalTransport

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from .call import Call
    from .context import Context
    from .plan import Plan
    from .signature import Verify
    from .transport import Transport

__all__ = ["Binding", "Route", "bind_exchange", "release", "resolve"]

TopologySource = Topology | Callable[[int], Topology]

# By group (or, in the simulator, by transport). Exchanges over one group share one state.
_STATES: weakref.WeakKeyDictionary[object, GroupState] = weakref.WeakKeyDictionary()


# It is part of every message's tag: a graph of many edges would take long to write out.
_LONGEST_DIGEST = 1_000


class _Local(threading.local):
    """A process without a group: each thread is alone."""

    def __init__(self) -> None:
        self.state = GroupState()


_LOCAL = _Local()

_generation = 0


def _new_generation() -> None:
    global _generation  # noqa: PLW0603 - one number per process, changed by fork alone
    _generation += 1


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_new_generation)


@dataclass(slots=True)
class Route:
    """A plan with the calls made for it so far, by grad mode and shapes.

    Args:
        plan: Of one operation.
        discover: Whether its shapes are asked of their senders.
        once: Whether only when this rank sends such shapes for the first time.
        builds: Whether the operation itself says, by ``like``, how what arrives is built, also
            where shapes are discovered.
        calls: Made so far.
        known: Those whose shapes were asked for once, by what this rank sends.
    """

    plan: Plan
    discover: bool = False
    once: bool = False
    builds: bool = False
    calls: dict[object, Call] = field(default_factory=dict)
    known: dict[object, Call] = field(default_factory=dict)


@dataclass(slots=True)
class Binding:
    """An Exchange, once its ranks are known.

    Args:
        engine: Runs its calls.
        context: Where this process stands.
        topology: With the right size.
        name: Of the Exchange.
        verify: Of the Exchange.
        deadline: Unless a call brings its own.
        routes: By operation and its arguments.
        sizes: What ``shapes="once"`` was told, by operation and what this rank has.
        kept: What families of operations have worked out for this group, by keys of theirs.
        compiled: Calls of compiled code: apart, since all ranks forget the others together.
        digest: What all ranks must agree on about the topology.
        generation: Of the process: a fork makes a binding void.
        owner: Number of the Exchange on its group, in the order of their first calls; 0 before.
        step: Tells where the runtime's loop stands, where the adapter knows it.
        here: For error texts.
    """

    engine: Engine
    context: Context
    topology: Topology
    name: str
    verify: Verify
    deadline: Deadline
    routes: dict[object, Route] = field(default_factory=dict)
    sizes: dict[str, dict[object, list[list[int]]]] = field(default_factory=dict)
    kept: dict[object, object] = field(default_factory=dict)
    compiled: dict[object, Call] = field(default_factory=dict)
    digest: str = ""
    generation: int = field(default_factory=lambda: _generation)
    owner: int = 0
    step: Callable[[], tuple[int, ...]] | None = None
    alive: Callable[[], bool] = field(init=False)
    here: str = field(init=False)

    def __post_init__(self) -> None:
        self.alive = self.engine.transport.alive
        self.here = f"(rank {self.engine.rank} of {self.engine.size})"

    def valid(self) -> bool:
        """Whether this process may go on using it: no fork in between, and the group exists."""
        return self.generation == _generation and self.alive()

    @property
    def signed(self) -> bool:
        """Whether signatures are part of the tags, and waits are watched."""
        return self.verify != "off"

    @property
    def guarded(self) -> ProcessGroup | None:
        """The group, if it is one that a guard watches over."""
        return self.context.group if self.signed and self.engine.size > 1 else None

    def prepare(self, deadline: Deadline) -> None:
        """Put the group under guard, before the first exchange over it."""
        group, state = self.guarded, self.engine.state
        if group is not None and state.guard is None:
            attach(
                state,
                group,
                self.engine.device,
                label=self.engine.transport.label,
                topology=self.digest,
                verify=self.verify,
                timeout=deadline.seconds,
            )
        transport = self.engine.transport
        if isinstance(transport, GroupTransport):
            transport.open(deadline.seconds)
            on_cpu = transport.batch is None and self.engine.device.type == "cpu"
            if state.same_host is not None and on_cpu and self.signed and not self.owner:
                transport.shorten(state.same_host)
                self.engine.reconnect(state.same_host.peers, state.same_host.flush)
        if not self.owner:
            if group is not None:
                self.engine.host = runtime.store_host(group)
            if not self.signed and self.context.group is not None and self.engine.size > 1:
                stay_unwatched(self.context.group, self.digest)
            state.owners += 1
            self.owner = state.owners

    def flight_record(self) -> FlightRecord:
        """Return what the group remembers of its last exchanges on this rank."""
        engine = self.engine
        return take(
            engine.state,
            rank=engine.rank,
            size=engine.size,
            group=engine.transport.label,
            topology=self.digest,
        )


def bind_exchange(
    context: Context,
    topology: TopologySource,
    *,
    name: str,
    verify: Verify,
    deadline: Deadline,
    last_size: int | None,
) -> Binding:
    """Make a binding.

    Args:
        context: What the adapter found.
        topology: Or a function of the size.
        name: Of the Exchange.
        verify: Of the Exchange.
        deadline: Of each exchange.
        last_size: Ranks of the group that it was bound to before (also in the process that it was
            copied from).

    Raises:
        ArgumentError: An environment variable of this library says nothing sensible.
        ContextError: It was bound to several ranks before and this process is alone.
        TopologyError: The topology does not have as many ranks as the group.
    """
    check_settings(os.environ)
    if context.group is not None:
        context = replace(context, group=successor(context.group))
    local = context.group is None and context.transport is None
    if local and not context.alone and last_size is not None and last_size > 1:
        raise ContextError(
            f"this Exchange belongs to {last_size} ranks, but here is no process group (the"
            " group was destroyed, or this is a copy in another process): nothing would be"
            " exchanged. Use it where the group is, or give the adapter alone=True"
        )
    transport: Transport
    if context.transport is not None:
        transport, state = context.transport, _state_of(context.transport)
    elif context.group is not None:
        transport = GroupTransport(context.group, context.device)
        state = _state_of(context.group)
    else:
        transport, state = LocalTransport(alone=context.alone), _LOCAL.state
    resolved = resolve(topology, context.size)
    engine = Engine(transport, context.device, state)
    engine.agree = agreement(transport, verify)
    return Binding(
        engine=engine,
        context=context,
        topology=resolved,
        name=name,
        verify=verify,
        deadline=deadline,
        digest=shortened(repr(resolved), _LONGEST_DIGEST),
    )


def resolve(topology: TopologySource, size: int | None) -> Topology:
    """Return the topology for that many ranks.

    Raises:
        TopologyError: It has another number of ranks, is no topology, or is a function of a size
            that is not known yet (``size`` is ``None``).
    """
    resolved: object = topology
    if not isinstance(topology, Topology):
        if size is None:
            raise TopologyError(
                f"the topology is made by {topology!r} when the number of ranks is known, which it"
                " is not yet; use the exchange first, or give it a topology of a fixed size"
            )
        resolved = topology(size)
    if not isinstance(resolved, Topology):
        raise TopologyError(
            f"Exchange: expected a topology or a function of the size that makes one, got"
            f" {resolved!r} from {topology!r}"
        )
    if size is not None and resolved.size != size:
        raise TopologyError(
            f"Exchange: {resolved!r} has {resolved.size} ranks, but the group has {size}; start"
            f" {resolved.size} processes, or let the size decide: Exchange(Ring, adapter)"
        )
    return resolved


def release(group: ProcessGroup) -> None:
    """Let go of all that Exchanges keep for a group that was destroyed."""
    state = _STATES.pop(group, None)
    if state is not None:
        state.forget()


def _state_of(owner: object) -> GroupState:
    state = _STATES.get(owner)
    if state is None:
        state = _STATES[owner] = GroupState()
    return state
