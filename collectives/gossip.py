"""Gossip: parameters averaged with neighbours, in place, and how far the ranks are apart."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn import Module

from .binding import Route
from .compiled.eager import eager_only
from .edges import plan_all_pairs, weight_sums
from .flats import Flats, check_params
from .move import move
from .neighbourhoods import Neighbourhoods
from .neighbours import find_edges, make_room
from .topology.weights import check_weights

if TYPE_CHECKING:
    from .binding import Binding

__all__ = ["Gossip"]


class Gossip(Neighbourhoods):
    """Decentralised averaging; see :class:`~collectives.Exchange`."""

    @eager_only
    def gossip_(
        self,
        params: Module | Iterable[Tensor],
        step: int | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Average parameters with the neighbours, in place: x_i <- sum_j W[i, j] x_j.

        W is the ``mixing_matrix()`` of the topology, or of a Schedule's graph of that step. What
        all ranks have comes closer to one value, by ``1 - topology.spectral_gap()`` with each call;
        that value is the mean where ``topology.is_doubly_stochastic()``. Over a Mesh there is
        ``Schedule.axis_by_axis(mesh)``.

        Called by: every rank, with parameters of the same shapes in the same order, outside of
        autograd: no gradient flows, as for an optimizer's step. Each edge takes one message for
        each dtype. Its memory is that of the parameters, once for this rank and once for each edge
        that arrives.

        Args:
            params: A module, or floating-point or complex tensors.
            step: Over a Schedule, the number of the step, the same on all ranks; without meaning
                elsewhere, so that one training loop can have either.
            timeout: Seconds, instead of the Exchange's.

        Raises:
            TopologyError: The weights of a rank do not sum to one; a Schedule without ``step``.
            ArgumentError: What cannot be averaged or written to.
            ExchangeError: It was started and did not succeed; the parameters are as they were.

        Example:
            >>> def program(adapter):
            ...     exchange = Exchange(Schedule.one_peer_exponential, adapter)
            ...     x = torch.tensor([float(exchange.rank)])
            ...     for step in range(2):
            ...         exchange.gossip_([x], step)
            ...     return x.item()
            >>> simulate(4, program)
            [1.5, 1.5, 1.5, 1.5]

        Source: BlueFog's neighbor_allreduce; Lian et al., "Can Decentralized Algorithms Outperform
        Centralized Algorithms?", 2017.
        """
        binding = self._bound()
        with torch.no_grad():
            flats = Flats(check_params(binding, "gossip_", params, written=True))
            route = find_edges(binding, "gossip_", step, contents=flats.contents)
            if not route.calls:  # all ranks see all weights, so all of them refuse
                check_weights(route.plan.op, weight_sums(route.topology))
            rows = flats.rows
            arrived = move(
                binding, route, route.to_all(rows), route.expected(binding, rows, None),
                timeout=timeout,
            )  # fmt: skip
            own, *others = route.factors(binding, None)
            torch._foreach_mul_(rows, own)
            of_edges = cast("tuple[list[Tensor], ...]", route.in_order(arrived))
            for factor, theirs in zip(others, of_edges, strict=True):
                torch._foreach_add_(rows, theirs, alpha=factor)
            flats.put_back()

    @eager_only
    def consensus_distance(
        self, params: Module | Iterable[Tensor], *, timeout: float | None = None
    ) -> float:
        """Return how far the ranks' parameters are from their mean: the root mean square distance.

        That is ``sqrt(mean over ranks of |x_i - mean|**2)``, where ``x_i`` are all parameters of a
        rank as one vector; summed in float64, and the same number on all ranks to the last bit. 0:
        all ranks have the same.

        Called by: every rank, with parameters of the same shapes in the same order. It takes two
        rounds of size - 1 messages per rank, which together are as long as the parameters.

        Args:
            params: A module, or floating-point or complex tensors.
            timeout: Seconds for each round, instead of the Exchange's.

        Raises:
            ArgumentError: What is no such tensor.
            ExchangeError: It was started and did not succeed.

        Example:
            >>> def program(adapter):
            ...     exchange = Exchange(Ring, adapter)
            ...     params = [torch.tensor([3.0, 4.0]) * exchange.rank]  # the mean is [3, 4]
            ...     return round(exchange.consensus_distance(params), 6)
            >>> simulate(3, program)  # the root of (25 + 0 + 25) / 3
            [4.082483, 4.082483, 4.082483]
        """
        binding = self._bound()
        with torch.no_grad():
            flats = Flats(check_params(binding, "consensus_distance", params))
            route = _all_pairs(binding, "consensus_distance", flats.contents)
            squares = _squares_of_my_part(binding, route, flats.rows, timeout)
            totals = _by_rank(binding, route, squares, timeout)
            return math.sqrt(math.fsum(totals) / binding.engine.size)


def _squares_of_my_part(
    binding: Binding, route: Route, rows: list[Tensor], timeout: float | None
) -> Tensor:
    """Return each rank's squared distance from the mean, as far as my part of the elements goes."""
    rank, size = binding.engine.rank, binding.engine.size
    parts = [row.tensor_split(size) for row in rows]
    mine = [part[rank] for part in parts]
    sent = tuple([part[(rank + hop) % size] for part in parts] for hop in range(1, size))
    like = tuple(mine for _ in range(1, size))
    arrived = cast("tuple[list[Tensor], ...]", move(binding, route, sent, like, timeout=timeout))
    of_rank = {(rank - hop) % size: tree for hop, tree in enumerate((mine, *arrived))}
    squares = torch.zeros(size, dtype=torch.float64, device="cpu")
    for number, own in enumerate(mine):
        # Distances from my own, not from zero: so they are exactly 0 where all have the same.
        apart = partial(_apart, own)
        mean = torch.zeros_like(apart(own))
        for source in range(size):
            mean += apart(of_rank[source][number]) / size
        for source in range(size):
            distance = apart(of_rank[source][number]) - mean
            squares[source] += distance.abs().square().sum().cpu()
    return squares


def _by_rank(binding: Binding, route: Route, squares: Tensor, timeout: float | None) -> list[float]:
    """Return the sums over all parts, added up in the same order on every rank."""
    rank, size = binding.engine.rank, binding.engine.size
    mine = squares.to(binding.engine.device)
    sent = (mine,) * (size - 1)
    arrived = cast("tuple[Tensor, ...]", move(binding, route, sent, timeout=timeout))
    of_rank = {(rank - hop) % size: part for hop, part in enumerate((mine, *arrived))}
    totals: list[float] = torch.stack([of_rank[r].cpu() for r in range(size)]).sum(0).tolist()
    return totals


def _apart(own: Tensor, x: Tensor) -> Tensor:
    wide = torch.complex128 if x.is_complex() else torch.float64
    return x.to(wide) - own.to(wide)


def _all_pairs(binding: Binding, operation: str, contents: str) -> Route:
    key = (operation, contents)
    route = binding.routes.get(key)
    if route is None:
        make_room(binding)
        engine = binding.engine
        route = Route(plan_all_pairs(engine.size, engine.rank, f"{operation}({contents})"))
        binding.routes[key] = route
    return route
