"""A message becomes a request: its observation is checked, and the client's noise stream gives its random numbers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fidec.errors import ConfigError
from fidec.parts import Frames, Observations, not_finite
from fidec.serve.serialization import Refused, array_of, describe, names_of
from fidec.train.acting import DIALS, ActOptions
from fidec.types import Part, Spec

SEED = 0  # of a client that names none
LARGEST = 2**32 - 1  # of seeds and steps
REMEMBERED = 1024  # clients of HTTP

OBSERVATION = "observation"
VECTOR = (OBSERVATION, "observation/state", "state")
IMAGE = (OBSERVATION, "observation/image", "image")


class Request(NamedTuple):
    """One observation, with the place of its random numbers and how the policy acts."""

    observation: Observations
    seed: int
    step: int
    act: ActOptions


class NoiseStream:
    """Where a client's random numbers are, a seed and a step, and its last observations if it sends single ones.

    The next request of the client takes the next step. A `shared` stream is that of all clients without a name. Their
    frames would be mixed, so it takes none.
    """

    def __init__(self, spec: Spec, shared: bool = False):
        self.seed, self.step, self.shared = SEED, 0, shared
        self.frames = Frames(spec.observations(spec.stack_of))

    def restart(self, seed: int) -> None:
        self.seed, self.step = seed, 0
        self.frames.reset()


class NoiseStreams:
    """The streams of HTTP's clients by name; the name "" is that of all without one.

    The stream that was not used for the longest time is forgotten first.
    """

    def __init__(self, spec: Spec, limit: int = REMEMBERED):
        self._spec, self._limit = spec, limit
        self._streams: OrderedDict[str, NoiseStream] = OrderedDict()

    def __len__(self) -> int:
        return len(self._streams)

    def __getitem__(self, client: str) -> NoiseStream:
        stream = self._streams.pop(client, None) or NoiseStream(self._spec, shared=not client)
        self._streams[client] = stream
        while len(self._streams) > self._limit:
            self._streams.popitem(last=False)
        return stream


class _Field(NamedTuple):
    """A part of an observation in a message."""

    part: Part
    name: str
    array: np.ndarray
    single: bool  # one of several successive ones


class Reader:
    """Messages of the clients of one policy, which acts by `act` unless a message says otherwise.

    `check(options)` raises ConfigError for options that the policy does not have.
    """

    def __init__(self, spec: Spec, act: ActOptions, check: Callable[[ActOptions], object]):
        self.spec, self._act, self._check = spec, act, check

    def fields(self, part: Part) -> tuple[str, ...]:
        """The names that an observation may have in a message. A part may also be an entry of `observation`."""
        if part.name:
            return (f"{OBSERVATION}/{part.name}",)
        return IMAGE if part.image else VECTOR

    def __call__(self, message: dict[str, Any], stream: NoiseStream | None) -> Request:
        """Check a message and take the next step of the stream; a message that is refused takes none.

        Without a stream the message has to name its own place, by `seed` and `step`.
        """
        fields = [self._field(part, message) for part in self.spec.inputs]
        arrays = {field.part.name: field.array for field in fields}
        observation = self.spec.observations(lambda part: arrays[part.name])
        act = self._options(message)
        seed, step = (_place(message, name) for name in ("seed", "step"))
        again = message.get("reset", False)
        if not isinstance(again, bool):
            raise Refused("field", f"`reset` is {describe(again)}, expected true or false")
        if step is not None and (seed is None or again):
            raise Refused("field", "`step` needs `seed`, and excludes `reset`: it names a place of its own")
        if step is None and stream is None:
            raise Refused(
                "field", "`seed` and `reset` need a `client` name. Without one, send both `seed` and `step`"
            )
        single = self._is_single(fields, stream is None or stream.shared or step is not None)
        if seed is not None and step is not None:
            return Request(observation, seed, step, act)
        assert stream is not None
        if again or (seed is not None and seed != stream.seed):
            stream.restart(stream.seed if seed is None else seed)
        if single:
            observation = stream.frames(observation)
        request = Request(observation, stream.seed, stream.step, act)
        stream.step = (stream.step + 1) % (LARGEST + 1)
        return request

    def _is_single(self, fields: Sequence[_Field], without_stream: bool) -> bool:
        """True if the client sent single frames, which the server stacks."""
        stacked = [field for field in fields if self.spec.stack_of(field.part) > 1]
        single = [field for field in stacked if field.single]
        if not single:
            return False
        if len(single) < len(stacked):
            other = next(field for field in stacked if not field.single)
            raise Refused(
                "shape", f"`{single[0].name}` is a single one and `{other.name}` is stacked: send both alike"
            )
        if without_stream:
            part, word = single[0].part, "frame" if single[0].part.image else "vector"
            advice = f"send all {self.spec.stack_of(part)} {word}s, or name a `client` and no `step`"
            raise Refused("shape", f"`{single[0].name}` is a single {word}, which has no stream here: {advice}")
        return True

    def _field(self, part: Part, message: dict[str, Any]) -> _Field:
        names = self.fields(part)
        values = {name: message[name] for name in names if name in message}
        inner = message.get(OBSERVATION) if part.name else None
        if isinstance(inner, dict) and part.name in inner:
            values[f"{OBSERVATION}.{part.name}"] = inner[part.name]
        if not values:
            wanted = ", ".join(f"`{name}`" for name in names)
            what = f"part {part.name!r} of the observation" if part.name else "observation"
            one = "one of " if len(names) > 1 else ""
            raise Refused("field", f"there is no {what}: expected {one}{wanted}, found {names_of(message)}")
        field, *others = values
        if others:
            raise Refused("field", f"there are two observations, `{field}` and `{others[0]}`: send one of them")
        array = self._checked(part, field, array_of(values[field], field))
        return _Field(part, field, array, array.shape != part.shape)

    def _checked(self, part: Part, field: str, array: np.ndarray) -> np.ndarray:
        spec, word = self.spec, "frame" if part.image else "vector"
        # A client that is asked every step may send single ones. In a chunk it would leave some out.
        may, one = spec.stack_of(part) > 1 and spec.replan == 1, (*part.shape[:-1], spec.newest(part))
        if array.shape != part.shape and not (may and array.shape == one):
            more = f", or a single {word} {one}" if may else ""
            raise Refused("shape", f"`{field}` has the shape {array.shape}, expected {part.shape}{more}")
        if part.dtype == "uint8":
            if array.dtype.kind not in "iu":
                raise Refused("dtype", f"`{field}` is {array.dtype}, expected uint8: pixels from 0 to 255")
            if array.size and not 0 <= int(array.min()) <= int(array.max()) <= 255:
                raise Refused("dtype", f"`{field}` has a pixel outside 0 to 255: {array.min()} to {array.max()}")
            return array.astype(np.uint8)
        if array.dtype.kind == "b":
            raise Refused("dtype", f"`{field}` is {array.dtype}, expected {part.dtype}")
        with np.errstate(over="ignore"):
            numbers = array.astype(part.dtype)
        if problem := not_finite(numbers, array):
            raise Refused("not_finite", f"`{field}` {problem}")
        return numbers

    def _options(self, message: dict[str, Any]) -> ActOptions:
        dials = {}
        for name in DIALS.keys() & message.keys():
            value = array_of(message[name], name)
            if value.shape != () or value.dtype.kind == "b":
                raise Refused("field", f"`{name}` is {describe(message[name])}, expected a number")
            with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
                dials[name] = float(value.astype(np.float32))
        if not dials:
            return self._act
        try:
            act = replace(self._act, **dials)
            self._check(act)
        except ConfigError as error:
            raise Refused("field", str(error)) from None
        return act


def _place(message: dict[str, Any], name: str) -> int | None:
    """A seed or a step, if the message has it."""
    if message.get(name) is None:
        return None
    value = array_of(message[name], name)
    if value.shape != () or value.dtype.kind not in "iu" or not 0 <= int(value) <= LARGEST:
        raise Refused("field", f"`{name}` is {describe(message[name])}, expected a whole number in [0, 2^32)")
    return int(value)
