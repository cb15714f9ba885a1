"""A message becomes a request: the observation is found and checked, and the client's stream gives the noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fidec.errors import ConfigError
from fidec.parts import Observations
from fidec.serve.errors import Refused
from fidec.serve.streams import LARGEST, Stream
from fidec.serve.wire import array_of, describe, names_of
from fidec.types import Part, Spec

OBSERVATION = "observation"
VECTOR = (OBSERVATION, "observation/state", "state")
IMAGE = (OBSERVATION, "observation/image", "image")


class Ask(NamedTuple):
    """One observation, with the place of its random numbers and its factors."""

    observation: Observations
    seed: int
    step: int
    noise: float
    strength: float


class _Found(NamedTuple):
    """A part of an observation in a message."""

    part: Part
    field: str
    array: np.ndarray
    single: bool  # one of several successive ones


class Reader:
    """Messages of the clients of one policy. `check_dials(noise=..., strength=...)` raises ConfigError."""

    def __init__(self, spec: Spec, check_dials: Callable[..., object], noise: float = 1.0, strength: float = 1.0):
        self.spec, self._check_dials = spec, check_dials
        self._usual = {"noise": noise, "strength": strength}

    def fields(self, part: Part) -> tuple[str, ...]:
        """The names that an observation may have in a message. A part may also be an entry of `observation`."""
        if part.name:
            return (f"{OBSERVATION}/{part.name}",)
        return IMAGE if part.image else VECTOR

    def __call__(self, message: dict[str, Any], stream: Stream | None) -> Ask:
        """Check a message and take the next step of the stream; a message that is refused takes none.

        Without a stream the message has to name its own place, by `seed` and `step`.
        """
        found = [self._part(part, message) for part in self.spec.inputs]
        arrays = {each.part.name: each.array for each in found}
        observation = self.spec.observations(lambda part: arrays[part.name])
        dials = self._dials(message)
        seed, step = (_whole(message, name) for name in ("seed", "step"))
        again = message.get("reset", False)
        if not isinstance(again, bool):
            raise Refused("field", f"`reset` is {describe(again)}, expected true or false")
        if step is not None and (seed is None or again):
            raise Refused("field", "`step` needs `seed`, and excludes `reset`: it names a place of its own")
        if step is None and stream is None:
            raise Refused("field", "`seed` and `reset` need `client`, the name of a stream, or `step` beside `seed`")
        single = self._is_single(found, stream is None or stream.shared or step is not None)
        if seed is not None and step is not None:
            return Ask(observation, seed, step, **dials)
        assert stream is not None
        if again or (seed is not None and seed != stream.seed):
            stream.restart(stream.seed if seed is None else seed)
        if single:
            observation = stream.frames(observation)
        ask = Ask(observation, stream.seed, stream.step, **dials)
        stream.step = (stream.step + 1) % (LARGEST + 1)
        return ask

    def _is_single(self, found: Sequence[_Found], without_stream: bool) -> bool:
        """Whether the parts are single ones, which the stream stacks; all of them or none."""
        stacked = [each for each in found if self.spec.stack_of(each.part) > 1]
        single = [each for each in stacked if each.single]
        if not single:
            return False
        if len(single) < len(stacked):
            other = next(each for each in stacked if not each.single)
            raise Refused(
                "shape", f"`{single[0].field}` is a single one and `{other.field}` is stacked: send both alike"
            )
        if without_stream:
            part, word = single[0].part, "frame" if single[0].part.image else "vector"
            advice = f"send all {self.spec.stack_of(part)} {word}s, or name a `client` and no `step`"
            raise Refused("shape", f"`{single[0].field}` is a single {word}, which has no stream here: {advice}")
        return True

    def _part(self, part: Part, message: dict[str, Any]) -> _Found:
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
        return _Found(part, field, array, array.shape != part.shape)

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
        finite = np.isfinite(numbers)
        if not finite.all():
            first = tuple(int(i) for i in np.argwhere(~finite)[0])
            place = first[0] if len(first) == 1 else first
            raise Refused(
                "not_finite",
                f"`{field}` is {array[first]} at index {place}: a policy needs finite numbers of "
                f"{part.dtype}. Check the sensor, or hold its last value",
            )
        return numbers

    def _dials(self, message: dict[str, Any]) -> dict[str, float]:
        dials = {}
        for name, usual in self._usual.items():
            if name not in message:
                dials[name] = usual
                continue
            value = array_of(message[name], name)
            if value.shape != () or value.dtype.kind == "b":
                raise Refused("field", f"`{name}` is {describe(message[name])}, expected a number")
            with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
                dials[name] = float(value.astype(np.float32))
        try:
            self._check_dials(**dials)
        except ConfigError as error:
            raise Refused("field", str(error)) from None
        return dials


def _whole(message: dict[str, Any], name: str) -> int | None:
    """A seed or a step, if the message has it."""
    if message.get(name) is None:
        return None
    value = array_of(message[name], name)
    if value.shape != () or value.dtype.kind not in "iu" or not 0 <= int(value) <= LARGEST:
        raise Refused("field", f"`{name}` is {describe(message[name])}, expected a whole number in [0, 2^32)")
    return int(value)
