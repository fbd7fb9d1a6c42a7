"""What runs for real while code is traced, since it depends on the process and not on tensors."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

import torch
from torch._dynamo import exc, symbolic_convert
from torch.utils import _pytree as pytree

from ..deadline import deadline_of
from ..errors import ArgumentError, CollectivesError
from ..tracing import is_exporting, recording
from ..trees import flatten, in_words
from .live import identity_of, named
from .saving import refuse_to_run_again
from .script import Number, Script

if TYPE_CHECKING:
    from ..plan import Plan

__all__ = ["base_of", "bind", "constant", "inside_another", "outside", "refuse", "script_of"]

P = ParamSpec("P")
T = TypeVar("T")

# Of modules that callers do not know: this package and torch.
_INNER = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent))


def constant(function: Callable[P, T]) -> Callable[P, T]:
    """Run a function when its call is traced, and make its result a constant of the graph."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except CollectivesError as error:
            raise _let_through(error) from error

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return cast("T", run(*args, **kwargs))

    return torch.compiler.assume_constant_result(call)  # type: ignore[no-any-return]


def _let_through(error: CollectivesError) -> Exception:
    """Return an error that Dynamo does not take for a failure of its own.

    It is of the error's class, and of the class of what Dynamo cannot trace: without ``fullgraph``
    the graph ends there and the call is made in eager mode, which raises the error itself.
    """
    if _translator() is None:
        return error
    kind = type(type(error).__name__, (exc.Unsupported, type(error)), {})
    return cast("Exception", kind(str(error)))


def _translator() -> symbolic_convert.InstructionTranslator | None:
    """Return what traces this code, if it is Dynamo."""
    return getattr(getattr(symbolic_convert, "tls", None), "current_tx", None)


@constant
def refuse(reason: str) -> None:
    """Refuse what cannot stand in a graph; where the graph may end there, do nothing.

    Raises:
        ArgumentError: The graph must not end.
    """
    translator = _translator()
    if translator is None:
        whole = recording() or is_exporting()
    else:
        whole = translator.one_graph or getattr(translator, "error_on_graph_break", False)
    if whole:
        raise ArgumentError(reason)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def outside(method: Callable[..., T], args: tuple[object, ...], kwargs: dict[str, object]) -> T:
    """Call a method in eager mode, between two graphs."""
    return method(*args, **kwargs)


@constant
def base_of(handle: str, find: Callable[..., Plan], arguments: tuple[object, ...]) -> str:
    """Return the script of an operation, all but its tensors.

    Args:
        handle: Of the Exchange, which is bound now if it was not before.
        find: Returns the plan, by the binding and the arguments.
        arguments: Of the operation.
    """
    binding = named(handle)._bound()
    plan = find(binding, *arguments)
    return Script(
        handle=handle,
        identity=identity_of(binding),
        op=plan.op,
        rank=plan.rank,
        size=plan.size,
        device=str(binding.engine.device),
        lanes=tuple((lane.key, lane.destination, lane.source) for lane in plan.lanes),
    ).text


@constant
def inside_another() -> bool:
    """Whether this is traced as a part of an operator (a checkpoint), which must not write out."""
    translator = _translator()
    return translator is not None and translator.output.current_tracer.parent is not None


@constant
def bind(handle: str) -> None:
    """Bind the Exchange, if it was not before."""
    named(handle)._bound()


@constant
def script_of(
    base: str,
    sent: tuple[int, ...],
    came: tuple[tuple[tuple[torch.dtype, int], ...], ...],
    outlines: tuple[tuple[object, ...], tuple[object, ...]],
    grad: bool,  # noqa: FBT001 - Dynamo's constants have no names
    wanted: bool,  # noqa: FBT001
    chained: bool,  # noqa: FBT001
    fill: object,
    timeout: float | None,
) -> str:
    """Return the script of one call.

    Args:
        base: Of its operation.
        sent: Number of tensors that leave on each lane.
        came: Dtype and number of dims of what arrives, lane by lane.
        outlines: For each lane the trees that leave, and those that arrive, zeros for tensors.
        grad: And what follows, see :class:`Script`.
        wanted: Whether an input needs a gradient.
        chained: Whether it is part of the chain.
        fill: Value beyond an open end.
        timeout: Seconds.
    """
    script = Script.parse(base)
    _refuse_transforms(script)
    if grad and _translator() is not None:
        refuse_to_run_again(script)
    if timeout is not None:
        deadline_of(timeout)
    kinds = tuple(
        tuple((str(dtype).removeprefix("torch."), dims) for dtype, dims in lane) for lane in came
    )
    whole = replace(
        script,
        sent=sent,
        came=kinds,
        trees=tuple(zip(*(map(_in_words, trees) for trees in outlines), strict=True)),
        grad=grad,
        wanted=wanted,
        chained=chained,
        fill=_number(fill, script),
        timeout=timeout,
        place=_place(),
    )
    return whole.text


def _refuse_transforms(script: Script) -> None:
    if torch._C._are_functorch_transforms_active():
        raise ArgumentError(
            f"{script.op}: torch.func transforms cannot be compiled with an exchange in them (rank"
            f" {script.rank} of {script.size}); leave the transformed function to eager mode, or"
            " take loss.backward() outside of the compiled function"
        )


def _number(fill: object, script: Script) -> Number:
    if not isinstance(fill, bool | int | float | complex):
        raise ArgumentError(
            f"{script.op}: fill must be a number that is known when the code is compiled, got"
            f" {type(fill).__name__} (rank {script.rank} of {script.size}); fill with a tensor"
            " afterwards, where the topology says that there is no source"
        )
    return fill


def _in_words(outline: object) -> str:
    """Return how a tree is built, as in eager mode."""
    if outline is None or outline == 0:
        return ""
    tree = pytree.tree_map(
        lambda leaf: None if leaf is None else torch.empty(0, device="cpu"), outline
    )
    return in_words(flatten(tree, "")[1])


def _place() -> tuple[str, int] | None:
    """Return where the code stands that is being traced."""
    by_dynamo = _translator() is not None
    stack = torch._guards.TracingContext.extract_stack() if by_dynamo else traceback.extract_stack()
    for frame in reversed(stack):
        if not frame.filename.startswith(_INNER):
            return frame.filename, frame.lineno or 0
    return None
