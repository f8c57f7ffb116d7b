"""A command made from its request: the fields of a dataclass are its options, see `console.request_options`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from typer.models import OptionInfo


def request_command(run: Callable[..., Any]) -> Callable[..., Any]:
    """A function for typer: in place of each parameter of `run` that is a dataclass, the fields of it that are options.

    Dataclasses in it are looked through. Fields that are no options keep their defaults.
    """
    hints, own = get_type_hints(run, include_extras=True), inspect.signature(run).parameters

    def command(**given: Any) -> Any:
        return run(
            **{name: _made(hints[name], given) if is_dataclass(hints[name]) else _value(given[name], each.default)
               for name, each in own.items()}
        )  # fmt: skip

    parameters: list[inspect.Parameter] = []
    for name, each in own.items():
        parameters += _options(hints[name]) if is_dataclass(hints[name]) else [_option(name, hints[name], each.default)]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__doc__ = run.__doc__
    return command


def _options(request: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(request, include_extras=True)
    own = vars(request).get("__annotations__", {})
    # Options of the class come before those that it inherits; arguments stay in their order.
    for each in sorted(fields(request), key=lambda each: each.name not in own and _is_option(hints[each.name])):
        if is_dataclass(hints[each.name]):
            yield from _options(hints[each.name])
        elif get_origin(hints[each.name]) is Annotated:
            yield _option(each.name, hints[each.name], each.default)


def _is_option(hint: Any) -> bool:
    return get_origin(hint) is Annotated and isinstance(get_args(hint)[1], OptionInfo)


def _option(name: str, hint: Any, default: Any) -> inspect.Parameter:
    """The parameter that typer reads; an option without a name of its own is called as its field."""
    if get_origin(hint) is Annotated:
        kind, words = get_args(hint)
        if isinstance(words, OptionInfo) and words.default is ...:
            dashed, words = name.strip("_").replace("_", "-"), copy(words)
            is_switch = bool in (kind, *get_args(kind)) and default is not False
            words.param_decls = (f"--{dashed}/--no-{dashed}" if is_switch else f"--{dashed}",)
        typed = _typed(kind)
        hint = Annotated[str | None if words.callback and typed != kind else typed, words]
    if default in (MISSING, inspect.Parameter.empty):
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint)
    shown = list(default) if isinstance(default, tuple) else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=shown, annotation=hint)


def _typed(kind: Any) -> Any:
    """Type as typer writes it: a list for an option that may be given several times."""
    if get_origin(kind) in (Union, UnionType):
        return Union[tuple(_typed(each) for each in get_args(kind))]  # noqa: UP007
    is_many = get_origin(kind) is Sequence or (get_origin(kind) is tuple and get_args(kind)[-1] is ...)
    return list[get_args(kind)[0]] if is_many else kind  # type: ignore[misc]


def _made(request: Any, given: Mapping[str, Any]) -> Any:
    hints = get_type_hints(request)
    values = {}
    for each in fields(request):
        if is_dataclass(hints[each.name]):
            values[each.name] = _made(hints[each.name], given)
        elif each.name in given:
            values[each.name] = _value(given[each.name], each.default)
    return request(**values)


def _value(given: Any, default: Any) -> Any:
    """Value from typer, with a tuple for a list; an empty list means that the option was not given."""
    if not isinstance(given, list):
        return given
    return tuple(given) if given or default in (MISSING, inspect.Parameter.empty) else default
