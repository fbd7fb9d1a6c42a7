"""Methods that cannot stand in a graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar, cast

from ..errors import ArgumentError
from ..tracing import skip_frames, tracing

__all__ = ["beyond_graphs", "eager_only", "graphable", "in_eager_mode", "not_in_graphs"]

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def eager_only(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Make a method end the graph of code that is compiled; with ``fullgraph=True``, refuse it."""
    reason = not_in_graphs(method.__name__)
    # Dynamo leaves out code that it once met without tensors: then it does not see this wrapper.
    skip_frames(method)

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if tracing():
            return in_eager_mode(reason, method, self, *args, **kwargs)
        return method(self, *args, **kwargs)

    return cast("Callable[Concatenate[S, P], T]", call)


def not_in_graphs(name: str) -> str:
    """Return what is said of an operation or layer that cannot stand in a graph."""
    return (
        f"{name} cannot stand in compiled code: call it outside of the compiled function, or"
        " compile without fullgraph=True"
    )


def graphable(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Make a method that can be traced raise our errors while it is, instead of the compiler's."""

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if not tracing():
            return method(self, *args, **kwargs)
        try:
            return method(self, *args, **kwargs)
        except ArgumentError as error:
            reason: str = error.args[0]
        # Out here: a graph that would have to end in a handler is not made at all.
        return in_eager_mode(reason, method, self, *args, **kwargs)

    return cast("Callable[Concatenate[S, P], T]", call)


def in_eager_mode(reason: str, method: Callable[..., T], /, *args: object, **kwargs: object) -> T:
    """Call a method in eager mode, between two graphs.

    Raises:
        ArgumentError: The graph must not end; the text is the reason.
    """
    from .at_trace import outside, refuse

    refuse(reason)
    return cast("T", outside(method, args, kwargs))


def beyond_graphs(operation: str, out: object, shapes: str) -> str:
    """Return why an operation with these arguments cannot stand in a graph; "" if it can."""
    if out is not None:
        return (
            f"{operation}: out= cannot be used in compiled code, which plans its memory by itself;"
            " leave it out"
        )
    if shapes != "same":
        return (
            f"{operation}: shapes={shapes!r} asks other ranks when the code runs, but compiled code"
            " must know what arrives; say it through like= or sizes=, or that it is like what"
            " leaves: shapes='same'"
        )
    return ""
