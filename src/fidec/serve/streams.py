"""Where a client's random numbers are: a seed and a step. The next request of the client takes the next step."""

from __future__ import annotations

from collections import OrderedDict

from fidec.parts import Frames
from fidec.types import Spec

SEED = 0  # of a client that names none
LARGEST = 2**32 - 1  # of seeds and steps
REMEMBERED = 1024  # clients of HTTP


class Stream:
    """The position of one client, and its last observations if it sends single ones.

    A `shared` stream is that of all clients without a name. Their frames would be mixed, so it takes none.
    """

    def __init__(self, spec: Spec, shared: bool = False):
        self.seed, self.step, self.shared = SEED, 0, shared
        self.frames = Frames(spec.observations(spec.stack_of))

    def restart(self, seed: int) -> None:
        self.seed, self.step = seed, 0
        self.frames.reset()


class Streams:
    """The streams of HTTP's clients by name; the name "" is that of all without one.

    The stream that was not used for the longest time is forgotten first.
    """

    def __init__(self, spec: Spec, limit: int = REMEMBERED):
        self._spec, self._limit = spec, limit
        self._streams: OrderedDict[str, Stream] = OrderedDict()

    def __len__(self) -> int:
        return len(self._streams)

    def __getitem__(self, client: str) -> Stream:
        stream = self._streams.pop(client, None) or Stream(self._spec, shared=not client)
        self._streams[client] = stream
        while len(self._streams) > self._limit:
            self._streams.popitem(last=False)
        return stream
