"""The user's function between trees and flat tensors, run in forward and again in backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..checks import memory_of, plain
from ..errors import ArgumentError, CapturedTensorError
from ..trees import Structure, flatten, unflatten
from .captured import clock, find_captured
from .replay import Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..binding import Binding

__all__ = ["Body", "Pulled", "add", "differentiable", "own_memory"]

Row = list[Tensor | None]


class Pulled(NamedTuple):
    """Gradients of one term.

    Args:
        inputs: One for each tensor that the function was given.
        params: One for each parameter.
    """

    inputs: Row
    params: Row


class Body:
    """A function of ``(source, *trees)`` that returns a tree.

    Args:
        op: Of whose loop it is the body.
        binding: Of the Exchange.
        fn: Of the user.
        trees: What it is given in the first round; later rounds are built alike.
        params: That it has by closure.
    """

    def __init__(
        self,
        op: str,
        binding: Binding,
        fn: Callable[..., object],
        trees: Sequence[object],
        params: Sequence[Tensor],
    ) -> None:
        self.op, self.binding, self.params = op, binding, list(params)
        self._fn = fn
        self.given: list[list[Tensor]] = []
        self._structures: list[Structure] = []
        for tree in trees:
            leaves, structure = flatten(tree, f"{op} {binding.here}")
            self.given.append([plain(binding, op, x) for x in leaves])
            self._structures.append(structure)
        self.result: Structure | None = None  # known after the first round
        self.surroundings = Surroundings(binding.engine.device)

    def __call__(self, source: int, inputs: Sequence[Tensor]) -> list[Tensor] | None:
        """Run the function on flat tensors; ``None`` where it has nothing to say.

        Raises:
            ArgumentError: It returned something else than in earlier rounds, exchanged something,
                or wrote to a tensor that it was given.
        """
        state = self.binding.engine.state
        trees, first = [], 0
        for structure in self._structures:
            trees.append(unflatten(structure, inputs[first : first + structure.count]))
            first += structure.count
        versions = [None if x.is_inference() else x._version for x in inputs]
        number = state.sequence
        value = self._fn(source, *trees)
        if state.sequence != number:
            raise ArgumentError(
                f"{self.op}: fn must not exchange {self.binding.here}: it is run again in"
                " backward, in an order of its own; exchange before or after, or write the loop"
                " with ring_pass"
            )
        if versions != [None if x.is_inference() else x._version for x in inputs]:
            raise ArgumentError(
                f"{self.op}: fn wrote to a tensor that it was given {self.binding.here}, which"
                " is on its way to the next rank or needed again; work on a clone"
            )
        return None if value is None else self._leaves(value)

    def _leaves(self, value: object) -> list[Tensor]:
        leaves, structure = flatten(value, f"{self.op}: what fn returns {self.binding.here}")
        if self.result is None:
            self.result = structure
        elif structure != self.result:
            raise ArgumentError(
                f"{self.op}: fn must return the same tree for every block {self.binding.here}:"
                f" expected {_built(self.result)}, got {_built(structure)}"
            )
        return leaves

    def pull(
        self,
        source: int,
        inputs: Sequence[Tensor],
        wanted: Sequence[bool],
        grads: Sequence[Tensor | None],
    ) -> Pulled:
        """Run the function again and pull gradients back through it.

        Args:
            source: As before.
            inputs: As before.
            wanted: Which of them need a gradient.
            grads: Of what it returned.
        """
        outputs, leaves = self.traced(source, inputs, wanted)
        both = () if outputs is None else zip(outputs, grads, strict=True)
        pairs = [(y, g) for y, g in both if y.requires_grad and g is not None]
        asked = [x for x in (*leaves, *self.params) if x.requires_grad]
        if not pairs or not asked:
            return Pulled([None] * len(leaves), [None] * len(self.params))
        found = iter(
            torch.autograd.grad(
                [y for y, _ in pairs], asked, [g for _, g in pairs], allow_unused=True
            )
        )
        gradients = [next(found) if x.requires_grad else None for x in (*leaves, *self.params)]
        return Pulled(gradients[: len(leaves)], gradients[len(leaves) :])

    def traced(
        self, source: int, inputs: Sequence[Tensor], wanted: Sequence[bool]
    ) -> tuple[list[Tensor] | None, list[Tensor]]:
        """Run the function with a graph of its own; return its outputs and the graph's leaves.

        Raises:
            CapturedTensorError: It uses a tensor that requires grad and was not given.
        """
        leaves = [x.detach().requires_grad_(w) for x, w in zip(inputs, wanted, strict=True)]
        return self.kept(source, leaves), leaves

    def kept(self, source: int, inputs: Sequence[Tensor]) -> list[Tensor] | None:
        """Run the function, with its graph on that of its inputs.

        Raises:
            CapturedTensorError: As above.
        """
        since = clock()
        with self.surroundings.entered(grad=True):
            outputs = self(source, inputs)
        captured = find_captured(outputs or (), (*inputs, *self.params), since)
        if captured is not None:
            raise CapturedTensorError(
                f"{self.op}: fn uses {captured} that requires grad and was not passed"
                f" {self.binding.here}: its gradient would be lost. Give it to fn as an argument,"
                " or name it, or the module that it belongs to, in params=; or detach() it"
            )
        return outputs


def differentiable(x: Tensor) -> bool:
    """Whether a tensor of this dtype can have a gradient."""
    return x.is_floating_point() or x.is_complex()


def add(totals: Sequence[Tensor | None], more: Sequence[Tensor | None]) -> Row:
    """Return the sums; ``None`` is zero."""
    return [
        b if a is None else a if b is None else a + b for a, b in zip(totals, more, strict=True)
    ]


def own_memory(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the outputs, copied where they are, or view, an input."""
    used = {memory_of(x) for x in inputs if x.numel()}
    return [y.clone() if memory_of(y) in used else y for y in outputs]


def _built(structure: Structure) -> str:
    count = f"{structure.count} tensor{'' if structure.count == 1 else 's'}"
    return count if structure.spec is None else f"{count} in a {structure.spec}"
