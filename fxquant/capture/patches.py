"""Stands in, while a trace runs, for functions that cannot run on proxies.

These are functions that ``torch.fx.wrap`` would keep whole, ``isinstance``, factories, random numbers, and the
transformers of ``torch.nn``, which look at values only to find a faster path to the same result.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
import torch.nn.utils.rnn as rnn
from torch import nn
from torch.fx import Proxy, _symbolic_trace
from torch.nn.modules import transformer

from fxquant.capture.modes import last_of, noted_if_idle, takes_training
from fxquant.capture.proxies import UNKNOWN, TensorProxy, proxies_in
from fxquant.capture.untraceable import fault_of, reason_for
from fxquant.errors import is_library_file
from fxquant.graph.operators.spelling import REGULARIZERS
from fxquant.graph.query import REASON

Globals = dict[str, Any]

FACTORIES = ("zeros", "ones", "empty", "eye", "tensor", "as_tensor", "asarray", "scalar_tensor")
"""What of torch takes sizes as bare arguments or in lists, among which torch's parser overlooks proxies."""

DRAWS = (
    *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like"),
    *("normal", "bernoulli", "multinomial", "poisson", "binomial"),
)
"""What of torch draws random numbers: one draw for all calls would be a constant."""
DRAWING_METHODS = (
    *("normal_", "uniform_", "bernoulli_", "exponential_", "random_", "cauchy_", "log_normal_", "geometric_"),
    *("bernoulli", "multinomial"),
)

DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
"""What of ``torch.nn.functional`` drops values while training, also of tensors that a forward made of numbers."""

LIMITS = ("finfo", "iinfo")
"""What of torch takes a dtype, which is known."""

LEAF_FUNCTIONS = (rnn.pack_padded_sequence, rnn.pad_packed_sequence, rnn.pack_sequence, rnn.pad_sequence)
"""Functions of torch that look at more than shapes: each call becomes one node."""


class PatchedNames:
    """Names in the modules of the traced code that stand for something else while the trace runs."""

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer
        self._before: list[tuple[Globals, str, Any]] = []
        self._seen: set[int] = set()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Stand in for wrapped functions that have a Python body; at the end, put everything back."""
        try:
            # Open functions that torch.fx was told to keep whole.
            for (_, name), namespace in _symbolic_trace._wrapped_fns_to_patch.copy().items():
                function = namespace.get(name)
                if not isinstance(function, FunctionType) or is_library_file(function.__code__.co_filename):
                    continue
                if f"{function.__module__}.{function.__name__}" not in REGULARIZERS:
                    self._put(namespace, name, self._opened(function))
            # Have questions about proxies answered as for tensors.
            self._put(vars(F), "isinstance", _isinstance)
            self._put(vars(torch), "is_tensor", lambda value: _isinstance(value, torch.Tensor))
            # Record what makes or draws tensors without a proxy among its arguments.
            for name in FACTORIES:
                self._put(vars(torch), name, _record(getattr(torch, name)))
            for name in LIMITS:
                self._put(vars(torch), name, _fixed(getattr(torch, name)))
            for name in DRAWS:
                self._put(vars(torch), name, self._drawn("call_function", getattr(torch, name)))
            for name in DRAWING_METHODS:
                setattr(torch.Tensor, name, self._drawn("call_method", getattr(torch.Tensor, name)))
            for name in DROPOUTS if self._tracer.marks_training_flag else ():
                self._put(vars(F), name, self._drawn("call_function", getattr(F, name)))
            for function in LEAF_FUNCTIONS:
                self._put(vars(rnn), function.__name__, _record(function))
            yield
        finally:
            for name in DRAWING_METHODS:
                if name in vars(torch.Tensor):
                    delattr(torch.Tensor, name)  # what it inherits is there again
            self._seen.clear()
            _set(reversed(self._before))
            self._before.clear()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Give the names their meaning back, so that what is imported meanwhile, as dynamo is, gets no other."""
        patched = [(namespace, name, namespace[name]) for namespace, name, _ in self._before]
        _set(reversed(self._before))
        try:
            yield
        finally:
            _set(patched)

    def patch_isinstance(self, code: Any) -> None:
        """Let ``isinstance`` in the module of a function (or of a module's forward) see what a proxy stands for.

        Functions there that take ``training`` become nodes where they give their input back.
        """
        namespace = getattr(getattr(code, "forward", code), "__globals__", None)
        if namespace is None or namespace is globals() or id(namespace) in self._seen:
            return  # the forwards that stand in for those of transformers ask for proxies themselves
        self._seen.add(id(namespace))
        for name, value in list(namespace.items()):
            if isinstance(value, FunctionType) and value in LEAF_FUNCTIONS:
                self._put(namespace, name, _record(value))
            elif isinstance(value, FunctionType) and takes_training(value):
                self._put(namespace, name, noted_if_idle(value))
        if "isinstance" not in namespace:
            self._put(namespace, "isinstance", _isinstance)

    def _opened(self, function: FunctionType) -> Callable[..., Any]:
        """A function that was to be kept whole: its body is traced, and where that fails, its call becomes a node."""

        @functools.wraps(function)
        def opened(*args: Any, **kwargs: Any) -> Any:
            if next(proxies_in((args, kwargs)), None) is None:
                return function(*args, **kwargs)
            last = last_of(self._tracer.graph)
            self.patch_isinstance(function)
            try:
                return function(*args, **kwargs)
            except Exception as error:
                reason = reason_for(*fault_of(error))
            self._tracer.forget_nodes_after(last)
            proxy = self._tracer.create_proxy("call_function", function, args, kwargs)
            proxy.node.meta[REASON] = reason
            return proxy

        setattr(opened, "__fx_already_patched", True)
        return opened

    def _drawn(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function or method that draws random numbers, as a node: each call of the graph draws anew."""

        @functools.wraps(function)
        def drawn(*args: Any, **kwargs: Any) -> Any:
            if not self._tracer.traces_now:
                return function(*args, **kwargs)
            return self._tracer.create_proxy(kind, function if kind == "call_function" else name, args, kwargs)

        name = function.__name__
        return drawn

    def _put(self, namespace: Globals, name: str, value: Any) -> None:
        self._before.append((namespace, name, namespace.get(name, UNKNOWN)))
        namespace[name] = value


def _set(names: Iterable[tuple[Globals, str, Any]]) -> None:
    for namespace, name, value in names:
        if value is not UNKNOWN:
            namespace[name] = value
        elif name in namespace:
            del namespace[name]


def _isinstance(value: Any, kind: Any) -> bool:
    if not isinstance(value, TensorProxy) or value.example is UNKNOWN:
        return isinstance(value, kind)
    return isinstance(value, kind) or isinstance(value.example, kind)


def _fixed(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function, updated=())
    def fixed(*args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        known = [argument.decide(frame) if isinstance(argument, TensorProxy) else argument for argument in args]
        return function(*known, **kwargs)

    return fixed


def _record(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        proxy = next(proxies_in((args, kwargs)), None)
        if proxy is None:
            return function(*args, **kwargs)
        return proxy.tracer.create_proxy("call_function", function, args, kwargs)

    return recorded


@contextmanager
def traceable_transformers() -> Iterator[None]:
    """Let encoders and decoders compute on proxies what they compute else, without looking at values."""
    forwards: tuple[tuple[Any, Any], ...] = (
        (nn.TransformerEncoder, _encode),
        (nn.TransformerEncoderLayer, _encode_once),
        (nn.TransformerDecoder, _decode),
    )
    before = [(kind, kind.forward) for kind, _ in forwards]
    try:
        for kind, instead in forwards:
            kind.forward = _for_proxies(instead, kind.forward)
        yield
    finally:
        for kind, forward in before:
            kind.forward = forward


def _for_proxies(instead: Callable[..., Any], forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def either(self: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(first, Proxy):
            return forward(self, first, *args, **kwargs)
        known = isinstance(first, TensorProxy) and first.example is not UNKNOWN
        with nullcontext() if known else _slow_path():
            return instead(forward, self, first, *args, **kwargs)

    return either


@contextmanager
def _slow_path() -> Iterator[None]:
    """Let forwards of transformers not ask for the sizes of their inputs, which are unknown without example inputs.

    They choose the fast path by these, and warn of masks that were said to be causal and are none.
    """
    fast, length = torch.backends.mha.get_fastpath_enabled(), transformer._get_seq_len
    torch.backends.mha.set_fastpath_enabled(False)
    transformer._get_seq_len = lambda *_: None
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        transformer._get_seq_len = length


def _encode_once(forward: Callable[..., Any], self: Any, src: Any, *args: Any, **kwargs: Any) -> Any:
    return forward(self, src, *args, **kwargs)


def _encode(
    forward: Callable[..., Any],
    self: Any,
    src: Any,
    mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: bool | None = None,
) -> Any:
    """Compute ``nn.TransformerEncoder``, with zeros where it would leave padded positions out of a nested tensor.

    It does so if the padding comes last in every row, which a graph finds out when it runs. Whether a mask is causal
    need not be found out: the mask counts either way.
    """
    norm, nested = self.norm, getattr(self, "use_nested_tensor", False)
    self.norm, self.use_nested_tensor = None, False
    try:
        output = forward(self, src, mask, src_key_padding_mask, bool(is_causal))
    finally:
        self.norm, self.use_nested_tensor = norm, nested
    fast = nested and not self.layers[0].training and torch.backends.mha.get_fastpath_enabled()
    if fast and src_key_padding_mask is not None and mask is None:
        padded = src_key_padding_mask != 0
        last = torch.logical_not(torch.any(padded[:, :-1] & torch.logical_not(padded[:, 1:])))
        output = output.masked_fill((padded & last).unsqueeze(-1), 0.0)
    return output if norm is None else norm(output)


def _decode(forward: Callable[..., Any], self: Any, tgt: Any, memory: Any, *args: Any, **kwargs: Any) -> Any:
    names = ("tgt_mask", "memory_mask", "tgt_key_padding_mask", "memory_key_padding_mask", "tgt_is_causal")
    given = dict(zip((*names, "memory_is_causal"), args, strict=False)) | kwargs
    return forward(self, tgt, memory, **(given | {"tgt_is_causal": bool(given.get("tgt_is_causal"))}))
