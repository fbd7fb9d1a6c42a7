"""Who needs which rows of whom on a whole mesh: integers only, worked out alike on every rank."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..errors import ArgumentError
from ..strips import Reach, Strip, misfit, plan_strips

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..topology import Cartesian

__all__ = ["Line", "Request", "Rule", "Sharded", "survey"]

# "lowest" stands for rows that never win a maximum: the padding of max pooling.
Rule = Literal["zeros", "replicate", "reflect", "lowest"]
Line = tuple[int, ...]
Table = tuple[tuple[int, ...], ...]


class Sharded(NamedTuple):
    """A dim that lies in shards along an axis.

    Args:
        dim: Of the tensor, counted from 0.
        axis: Index of the axis.
        wraps: Whether the field closes on itself along it.
        reach: How far each rank sees.
    """

    dim: int
    axis: int
    wraps: bool
    reach: Reach


class Request(NamedTuple):
    """What is asked for, alike on all ranks.

    Args:
        op: In words, with all arguments: part of what ranks must agree on.
        mode: What lies beyond the ends of the field.
        dims: In ascending order.
    """

    op: str
    mode: Rule
    dims: tuple[Sharded, ...]


# In the simulator all ranks of a process ask the same.
@lru_cache(maxsize=64)
def survey(
    topology: Cartesian, request: Request, table: Table
) -> tuple[Mapping[Line, tuple[Strip, ...]], ...]:
    """Return, for each dim, the strips of all ranks on each line along its axis.

    Args:
        topology: Of the ranks.
        request: What each needs.
        table: For each rank, the size of its shard along each dim of the request.

    Raises:
        ArgumentError: The shards form no grid, or a halo is wider than a shard.
    """
    lines = [
        {topology.along(one.axis, rank) for rank in range(topology.size)} for one in request.dims
    ]
    for number, of_one in enumerate(lines):
        for line in sorted(of_one):
            _check_line(topology, request, table, number, line)
    return tuple(
        {line: _strips(topology, request, table, number, line) for line in sorted(of_one)}
        for number, of_one in enumerate(lines)
    )


def _check_line(
    topology: Cartesian, request: Request, table: Table, number: int, line: Line
) -> None:
    """Refuse shards that form no grid: ranks side by side agree on all dims but one."""
    for other, theirs in enumerate(request.dims):
        for rank in line:
            if other != number and table[rank][other] != table[line[0]][other]:
                raise ArgumentError(
                    f"{request.op}: ranks {line[0]} and {rank} are on one line of axis"
                    f" {topology.axes[request.dims[number].axis]!r}, so their shards must have the"
                    f" same size along dim {theirs.dim}: got {table[line[0]][other]} and"
                    f" {table[rank][other]}; cut the field along whole rows and columns of ranks"
                )


def _strips(
    topology: Cartesian, request: Request, table: Table, number: int, line: Line
) -> tuple[Strip, ...]:
    one = request.dims[number]
    sizes = tuple(table[rank][number] for rank in line)
    strips = plan_strips(sizes, one.reach.needs(sizes), wraps=one.wraps)
    if reason := misfit(strips, request.mode):
        raise ArgumentError(
            f"{request.op}: along dim {one.dim} on axis {topology.axes[one.axis]!r}, {reason}"
        )
    return strips
