"""Help without JAX.

The options of a method are a plain dataclass, but the module that defines it also imports JAX, flax and optax, which
takes two seconds. Help needs only the options. While help is printed these packages and others that take long are
therefore replaced by stubs, as documentation builders do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

STUBBED = ("flax", "gymnasium", "jax", "jaxlib", "jaxtyping", "matplotlib", "optax", "scipy")


class _AnythingType(type):
    """Accepts what a module does with a class, function or constant while it is imported."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    __getitem__ = __or__ = __ror__ = __add__ = __radd__ = __mul__ = __rmul__ = __neg__ = __call__


class _Anything(metaclass=_AnythingType): ...


class _StubModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything


class _StubFinder(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None):
        return ModuleSpec(fullname, self, is_package=True) if fullname.split(".")[0] in STUBBED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


@contextmanager
def stubs() -> Iterator[None]:
    """Import stubs in place of the packages that take long, and forget all modules that were imported with them."""
    finder, before = _StubFinder(), set(sys.modules)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - before:
            if name.split(".")[0] in (*STUBBED, "fidec"):
                del sys.modules[name]
