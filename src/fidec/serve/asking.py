"""A message becomes a request: the observation is found and checked, and the client's stream gives the noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fidec.errors import ConfigError
from fidec.serve.errors import Refused
from fidec.serve.streams import LARGEST, Stream
from fidec.serve.wire import array_of, describe, names_of
from fidec.types import Spec

VECTOR = ("observation", "observation/state", "state")
IMAGE = ("observation", "observation/image", "image")


class Ask(NamedTuple):
    """One observation, with the place of its random numbers and its factors."""

    observation: np.ndarray
    seed: int
    step: int
    noise: float
    strength: float


class Reader:
    """Messages of the clients of one policy. `check_dials(noise=..., strength=...)` raises ConfigError."""

    def __init__(self, spec: Spec, check_dials: Callable[..., object], noise: float = 1.0, strength: float = 1.0):
        self.spec, self._check_dials = spec, check_dials
        self._usual = {"noise": noise, "strength": strength}
        self.names = IMAGE if spec.images else VECTOR
        self.frame = (*spec.observation_shape[:-1], spec.observation_shape[-1] // spec.frame_stack)

    def __call__(self, message: dict[str, Any], stream: Stream | None) -> Ask:
        """Check a message and take the next step of the stream; a message that is refused takes none.

        Without a stream the message has to name its own place, by `seed` and `step`.
        """
        field, observation = self._observation(message)
        dials = self._dials(message)
        seed, step = (_whole(message, name) for name in ("seed", "step"))
        again = message.get("reset", False)
        if not isinstance(again, bool):
            raise Refused("field", f"`reset` is {describe(again)}, expected true or false")
        if step is not None and (seed is None or again):
            raise Refused("field", "`step` needs `seed`, and excludes `reset`: it names a place of its own")
        if step is None and stream is None:
            raise Refused("field", "`seed` and `reset` need `client`, the name of a stream, or `step` beside `seed`")
        single = observation.shape != self.spec.observation_shape
        if single and (stream is None or stream.shared or step is not None):
            advice = f"send all {self.spec.frame_stack} frames, or name a `client` and no `step`"
            raise Refused("shape", f"`{field}` is a single frame, which has no stream here: {advice}")
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

    def _observation(self, message: dict[str, Any]) -> tuple[str, np.ndarray]:
        found = [name for name in self.names if name in message]
        if not found:
            wanted = ", ".join(f"`{name}`" for name in self.names)
            raise Refused("field", f"there is no observation: expected one of {wanted}, found {names_of(message)}")
        if len(found) > 1:
            raise Refused("field", f"there are two observations, `{found[0]}` and `{found[1]}`: send one of them")
        return found[0], self._checked(found[0], array_of(message[found[0]], found[0]))

    def _checked(self, field: str, array: np.ndarray) -> np.ndarray:
        spec = self.spec
        # A client that is asked every step may send single frames. In a chunk it would leave frames out.
        single = spec.frame_stack > 1 and spec.replan == 1 and array.shape == self.frame
        if array.shape != spec.observation_shape and not single:
            more = f", or a single frame {self.frame}" if spec.frame_stack > 1 and spec.replan == 1 else ""
            raise Refused("shape", f"`{field}` has the shape {array.shape}, expected {spec.observation_shape}{more}")
        if spec.observation_dtype == "uint8":
            if array.dtype.kind not in "iu":
                raise Refused("dtype", f"`{field}` is {array.dtype}, expected uint8: pixels from 0 to 255")
            if array.size and not 0 <= int(array.min()) <= int(array.max()) <= 255:
                raise Refused("dtype", f"`{field}` has a pixel outside 0 to 255: {array.min()} to {array.max()}")
            return array.astype(np.uint8)
        if array.dtype.kind == "b":
            raise Refused("dtype", f"`{field}` is {array.dtype}, expected {spec.observation_dtype}")
        with np.errstate(over="ignore"):
            numbers = array.astype(spec.observation_dtype)
        finite = np.isfinite(numbers)
        if not finite.all():
            first = tuple(int(i) for i in np.argwhere(~finite)[0])
            place = first[0] if len(first) == 1 else first
            raise Refused(
                "not_finite",
                f"`{field}` is {array[first]} at index {place}: a policy needs finite numbers of "
                f"{spec.observation_dtype}. Check the sensor, or hold its last value",
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
