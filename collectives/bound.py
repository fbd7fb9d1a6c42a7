"""An Exchange before and after its ranks are known: made early, bound at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from .binding import Binding, TopologySource, bind_exchange
from .compiled.live import enter
from .deadline import Deadline, deadline_of
from .errors import ArgumentError, ExchangeClosed
from .topology import Mesh, Topology
from .tracing import tracing

if TYPE_CHECKING:
    import torch

    from .context import Adapter
    from .signature import Verify

__all__ = ["BoundLate"]


class BoundLate:
    """What an Exchange is apart from its operations and its end; see there for the arguments."""

    def __init__(
        self,
        topology: TopologySource,
        adapter: Adapter,
        *,
        name: str | None = None,
        timeout: float = 300.0,
        verify: Verify = "auto",
    ) -> None:
        if isinstance(adapter, type) or not callable(getattr(adapter, "context", None)):
            raise ArgumentError(
                f"Exchange: expected an adapter (LightningAdapter, FabricAdapter, RawDDPAdapter),"
                f" got {adapter!r}"
            )
        if not isinstance(topology, Topology) and not callable(topology):
            raise ArgumentError(
                f"Exchange: expected a topology, such as Ring(4), or a function of the size, such"
                f" as Ring, got {topology!r}"
            )
        if cast("object", topology) is Mesh:
            raise ArgumentError(
                "Exchange: a Mesh is not made by its size alone; say how:"
                " Exchange(lambda size: Mesh.balanced(size, 2), adapter)"
            )
        if verify not in ("auto", "always", "off"):
            raise ArgumentError(
                f"Exchange: verify must be 'auto', 'always' or 'off', got {verify!r}"
            )
        self._topology, self._adapter = topology, adapter
        self._name = name or ""
        self._timeout = deadline_of(timeout).seconds
        self._verify = verify
        self._binding: Binding | None = None
        self._last_size: int | None = None
        self._closed = False
        self._handle = enter(self, self._name)

    def _bound(self) -> Binding:
        binding = self._binding
        if binding is None or not binding.valid():
            binding = self._bind()
        return binding

    def _bind(self) -> Binding:
        if self._closed:
            raise ExchangeClosed(f"{self!r} was closed; make a new one")
        self._binding = None
        self._binding = self._new_binding()
        self._binding.step = getattr(self._adapter, "step", None)
        self._last_size = self._binding.engine.size
        return self._binding

    def _new_binding(self) -> Binding:
        return bind_exchange(
            self._adapter.context(),
            self._topology,
            name=self._name,
            verify=self._verify,
            deadline=Deadline(self._timeout),
            last_size=self._last_size,
        )

    def _known(self) -> Binding:
        """Return the binding, also while code is traced: what is read of it is constant there."""
        if tracing():
            from .compiled.traced import binding_in_graph

            return binding_in_graph(self)
        return self._bound()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_binding": None, "_handle": ""}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._handle = enter(self, self._name)

    def __repr__(self) -> str:
        name = f", name={self._name!r}" if self._name else ""
        topology = getattr(self._topology, "__name__", None) or repr(self._topology)
        return f"Exchange({topology}, {type(self._adapter).__name__}{name})"

    @property
    def rank(self) -> int:
        """Position of this process in the topology."""
        return self._known().engine.rank

    @property
    def size(self) -> int:
        """Ranks of the topology."""
        return self._known().engine.size

    @property
    def device(self) -> torch.device:
        """Where exchanged tensors live."""
        return self._known().engine.device

    @property
    def topology(self) -> Topology:
        """The topology, with its size."""
        return self._known().topology
