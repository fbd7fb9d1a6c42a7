"""Loops over the blocks of all ranks: ring_pass, ring_fold and ring_scan."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from operator import index
from typing import SupportsIndex, TypeVar, cast

import torch
from torch import Tensor
from torch.nn import Module

from .binding import Binding
from .checks import plain
from .circuit import Options, circulate, find_track, fold, scan
from .compiled.eager import eager_only
from .errors import ArgumentError
from .moves import Moves
from .prepare import raise_left_over
from .routes import Axis, Shapes, check_shapes
from .tracing import untraced
from .trees import flatten

__all__ = ["Params", "Rings"]

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C")
Params = Tensor | Module | Iterable[Tensor | Module]


class Rings(Moves):
    """The operations in which every block visits every rank; see :class:`~collectives.Exchange`."""

    @eager_only
    def ring_pass(
        self,
        tree: T,
        *,
        axis: Axis = None,
        prefetch: SupportsIndex = 1,
        shapes: Shapes = "same",
        timeout: float | None = None,
    ) -> Generator[tuple[int, T], None, None]:
        """Iterate over the blocks of all ranks, the own one first, then rank - 1's, and so on.

        While the caller computes with one block, the next one is on its way; in backward so is
        the gradient. What a rank received is handed on: each talks to its neighbours only.

        Called by: every rank, with the same arguments; ``join`` the loss if a rank may not use all
        blocks. Other exchanges within the loop are allowed on a periodic axis, the same on all
        ranks.
        Gradient: of a block, from all ranks that used it, to its owner. What autograd keeps grows
        with the number of ranks; see :meth:`ring_fold`.

        **Leaving early** (``break``, an exception, a dropped iterator) waits until the hops that
        are left have been run, with the blocks thrown away: other ranks may still want them. So
        ranks may leave at different blocks; nothing is saved by leaving. An exception gets no
        further until then, or until a neighbour is found in another exchange.

        **On an open axis** no block goes beyond the end: rank r gets the blocks of r, r - 1, ...,
        0 only (those of the ranks that come before it: a causal mask). All ranks run all hops, so
        that no one waits in vain, but not equally many rounds of the loop.

        Args:
            tree: This rank's block. Not to be written to before the loop is over, nor are the
                blocks; that is found out (but for inference tensors, which do not count writes).
            axis: Of the mesh; may be left out where there is one.
            prefetch: Blocks that are on their way during a round. 0: none. More than 1: every rank
                sends its own block to each of the others, so that as many are on their way at once.
            shapes: As in :meth:`shift`: "discover" or "once" for blocks of different shapes.
            timeout: Seconds for each hop, instead of the Exchange's.

        Yields:
            ``(source, block)``: the rank in the topology that the block belongs to, and a tree
            like ``tree``. The first is ``tree`` itself; the others are new tensors.

        Raises:
            TopologyError: No such axis.
            ArgumentError: A tree that cannot be sent, or a ``prefetch`` below 0.
            ExchangeError: A hop was started and did not succeed.

        Example:
            >>> def program(adapter):
            ...     exchange = Exchange(Ring, adapter)
            ...     mine = torch.tensor([10.0 * exchange.rank])
            ...     return [(source, block.item()) for source, block in exchange.ring_pass(mine)]
            >>> simulate(3, program)[1]
            [(1, 10.0), (0, 0.0), (2, 20.0)]

        Source: ring attention (Liu et al. 2023); RingComm of ring-flash-attention.
        """
        binding = self._ready("ring_pass", shapes)
        track = find_track(binding.topology, binding.engine.rank, axis, "ring_pass")
        for leaf in flatten(tree, f"ring_pass {binding.here}")[0]:
            plain(binding, "ring_pass", leaf)
        ahead = _count("ring_pass: prefetch must be a number of blocks", prefetch, binding)
        how = "" if ahead < 2 else ", direct"
        op = f"ring_pass(axis={track.axis!r}{how})"
        options = Options(op, ahead, shapes=shapes, timeout=timeout)
        return _existing(circulate(binding, track, tree, options))

    @eager_only
    def ring_fold(
        self,
        fn: Callable[..., R | None],
        tree: object,
        *args: object,
        axis: Axis = None,
        params: Params = (),
        keep: SupportsIndex = 0,
        shapes: Shapes = "same",
        timeout: float | None = None,
    ) -> R:
        """Sum ``fn(source, block, *args)`` over the blocks of all ranks, in constant memory.

        The same sum as over :meth:`ring_pass`, but autograd keeps ``tree`` and ``args`` and nothing
        of the terms, however many ranks there are. In backward the blocks go round once more, each
        term is computed again (with the same random numbers, under the same autocast), and each
        block's gradient travels with it to its owner. Compared with a loop that is one forward more
        in computing, and half as many bytes more. ``keep`` buys some of that back.

        Called by: every rank, with the same arguments but ``fn``. Ranks need not use all blocks,
        and need no ``join`` as long as the loss of each depends on the result.
        Gradient: to ``tree`` (on all ranks, through whatever terms use the block), ``args`` and
        ``params``. Once: ``create_graph=True`` is refused, but where ``keep`` covers all of two or
        more terms.

        Args:
            fn: Called with the rank that a block belongs to, the block and ``args``; returns a tree
                of the same shapes for every block, or ``None`` for nothing to add. It must neither
                exchange nor write to what it is given. On an open axis it is called for blocks that
                exist only.
            tree: This rank's block.
            args: Trees of tensors, the same for every block; they do not travel.
            axis: Of the mesh; may be left out where there is one.
            params: Parameters, other tensors and modules that ``fn`` has by closure.
            keep: So many terms, the own one first, are kept for backward and not computed again;
                their blocks do not go round again. On two ranks 2 makes it a plain loop.
            shapes: As in :meth:`shift`: "discover" or "once" for blocks of different shapes.
            timeout: Seconds for each hop, instead of the Exchange's.

        Returns:
            The sum: a tree like what ``fn`` returns.

        Raises:
            CapturedTensorError: ``fn`` uses a tensor that requires grad and is neither among
                ``args`` nor ``params``; its gradient would be lost. Looked for in the first term,
                and in all terms in backward.
            ArgumentError: Something else that cannot be sent or summed, or a ``keep`` below 0.
            ExchangeError: A hop was started and did not succeed.

        Example:
            >>> def program(adapter):
            ...     exchange = Exchange(Ring, adapter)
            ...     query = torch.tensor(1.0 + exchange.rank)
            ...     key = torch.tensor(10.0, requires_grad=True)
            ...     score = exchange.ring_fold(lambda source, key, query: key * query, key, query)
            ...     score.backward()
            ...     return score.item(), key.grad.item()
            >>> simulate(3, program)  # each key meets the queries 1, 2 and 3
            [(30.0, 6.0), (60.0, 6.0), (90.0, 6.0)]
        """
        binding = self._ready("ring_fold", shapes)
        track = find_track(binding.topology, binding.engine.rank, axis, "ring_fold")
        # Its hops run without grad mode, which ranks must agree on all the same.
        mode = "" if torch.is_grad_enabled() else ", no_grad"
        kept = _count("ring_fold: keep must be a number of terms", keep, binding)
        much = f", keep={kept}" if kept else ""
        op = f"ring_fold(axis={track.axis!r}{much}{mode})"
        options = Options(op, shapes=shapes, timeout=timeout)
        trees, given = (tree, *args), _parameters(params)
        return cast("R", fold(binding, track, fn, trees, given, options, kept))

    @eager_only
    def ring_scan(
        self,
        fn: Callable[..., C],
        carry: C,
        tree: object,
        *args: object,
        axis: Axis = None,
        params: Params = (),
        shapes: Shapes = "same",
        timeout: float | None = None,
    ) -> C:
        """Carry something through the blocks: ``carry = fn(source, carry, block, *args)`` for each.

        For what cannot be summed, such as the softmax of ring attention. As :meth:`ring_fold` it
        computes each round again in backward, and keeps none of the blocks; but it keeps **the
        carry before each round**, as many as there are ranks. (To keep fewer, all rounds before
        would have to be computed again for each.) In backward the blocks come in the opposite
        order, so that each arrives at its owner together with its gradient.

        Called by: every rank, with the same arguments but ``fn``; without ``join`` as long as the
        loss of each depends on the result.
        Gradient: to ``carry``, ``tree``, ``args`` and ``params``. Once: ``create_graph=True`` is
        refused.

        Args:
            fn: Called with the rank that a block belongs to, the carry, the block and ``args``;
                returns the next carry, built like the one it got (that one itself where a block is
                skipped). The other rules are those of :meth:`ring_fold`.
            carry: What to begin with.
            tree: This rank's block.
            args: As in :meth:`ring_fold`.
            axis: Of the mesh; may be left out where there is one.
            params: As in :meth:`ring_fold`.
            shapes: As in :meth:`shift`.
            timeout: Seconds for each hop, instead of the Exchange's.

        Returns:
            The last carry.

        Raises:
            CapturedTensorError: As in :meth:`ring_fold`.
            ArgumentError: Something that cannot be sent, or another tree than the carry's.
            ExchangeError: A hop was started and did not succeed.

        Example:
            >>> def program(adapter):
            ...     exchange = Exchange(Ring, adapter)
            ...     digit = torch.tensor(1.0 + exchange.rank)
            ...     append = lambda source, number, digit: 10 * number + digit
            ...     return exchange.ring_scan(append, torch.tensor(0.0), digit).item()
            >>> simulate(3, program)
            [132.0, 213.0, 321.0]

        Source: jax.lax.scan, over a ring.
        """
        binding = self._ready("ring_scan", shapes)
        track = find_track(binding.topology, binding.engine.rank, axis, "ring_scan")
        # Its hops run without grad mode, which ranks must agree on all the same.
        mode = "" if torch.is_grad_enabled() else ", no_grad"
        op = f"ring_scan(axis={track.axis!r}{mode})"
        options = Options(op, shapes=shapes, timeout=timeout)
        trees = (carry, tree, *args)
        return cast("C", scan(binding, track, fn, trees, _parameters(params), options))

    def _ready(self, operation: str, shapes: Shapes) -> Binding:
        binding = self._bound()
        check_shapes(shapes, operation)
        raise_left_over(binding)  # also where a ring of one starts nothing
        return binding


@untraced
def _existing(
    blocks: Generator[tuple[int | None, T], None, None],
) -> Generator[tuple[int, T], None, None]:
    try:
        for source, block in blocks:
            if source is not None:
                yield source, block
    finally:
        blocks.close()


def _count(wanted: str, given: SupportsIndex, binding: Binding) -> int:
    try:
        count = -1 if isinstance(given, bool) else index(given)
    except TypeError:
        count = -1
    if count < 0:
        raise ArgumentError(f"{wanted}, 0 or more, got {given!r} {binding.here}")
    return count


def _parameters(params: Params) -> list[Tensor]:
    """Return the tensors among parameters and modules that require grad, each once."""
    found: dict[int, Tensor] = {}
    for one in (params,) if isinstance(params, Tensor | Module) else params:
        for x in one.parameters() if isinstance(one, Module) else (one,):
            if not isinstance(x, Tensor):
                raise ArgumentError(
                    f"params= must hold tensors and modules, got {type(x).__name__}; other values"
                    " go in through args"
                )
            if x.requires_grad:
                found[id(x)] = x
    return list(found.values())
