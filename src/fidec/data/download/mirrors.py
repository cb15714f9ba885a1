"""Which files belong to an id, where they are offered, and which checksums are known.

A mirror is listed only if its benchmark's authors point to it, or if others have published that its files are
byte for byte the official ones:

- zhouzypaul/ogbench_datasets: named by OGBench's author when the official host was down (ogbench issue 49).
- ryanhoangt/ogbench_data: its cube-single and cube-double files have the checksums below.
- imone/D4RL: a copy of D4RL's own download directory, unchanged since 2023, so its commit is fixed here.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from fidec.data.sources.d4rl import D4RL_FILES
from fidec.data.sources.ogbench import dataset_name
from fidec.errors import ConfigError
from fidec.quiet import quiet

D4RL_URL = "https://rail.eecs.berkeley.edu/datasets/offline_rl"
_OGBENCH_MIRRORS = ("zhouzypaul/ogbench_datasets/resolve/main", "ryanhoangt/ogbench_data/resolve/main")
_D4RL_MIRROR = "imone/D4RL/resolve/b9e1985fe28a0d67418c99473874d6a837d6cf94"

# Neither benchmark publishes checksums. These were published by others, each by at least two projects
# that seem to have nothing to do with each other. All other files are recorded at first use.
KNOWN_SHA256: dict[str, str] = {
    "cube-single-play-v0.npz": "80f3b6fd27f4f9d9e9eb6f0d07d6951559012f45b1e15ea4046ef8ecd8d3684e",
    "cube-single-play-v0-val.npz": "96d07401bdebdc3f0ea6d56ed1333863e0962f441483adc2c43b83105046eb00",
    "cube-double-play-v0.npz": "a73d1a33d029cedb8bc170ef94791ec585fa2d9450096f4f2a02b8cfbcf608c9",
    "cube-double-play-v0-val.npz": "b1fcdf4bd40750351a58d0d491d6be198366ce898f0c6a2e4cb5db331966013e",
    "scene-play-v0.npz": "66625e0cd9f2fcf92f5988f4d1bedeb2aa8b1e748316e507e89f4a9afb87c341",
}


@dataclass(frozen=True)
class Wanted:
    """A file: its name in the data directory, where it is offered (best first), its SHA-256 if known."""

    name: str
    urls: tuple[str, ...]
    sha256: str | None = None


def wanted(some_id: str, *, url: str | None = None) -> tuple[Wanted, ...]:
    """The files of a data set's name or a task id: one for D4RL; for OGBench the training and the `-val` file.

    `url` takes the place of the known hosts: a directory that holds the files, or the (training) file itself.
    """
    if url is not None and not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url {url!r}: expected an address that starts with http:// or https://.")
    bare = some_id.removeprefix("d4rl:")
    if bare in D4RL_FILES:
        return (_d4rl(bare, url),)
    near = [known for known in D4RL_FILES if known.rpartition("-")[0] == bare.rpartition("-")[0]]
    if near or bare != some_id:
        raise ConfigError(f"no D4RL data set {bare!r}. Known: {', '.join(near or D4RL_FILES)}.")
    name = dataset_name(some_id.removeprefix("ogbench:"))
    if not re.fullmatch(r"[a-z0-9-]+", name):  # it becomes a file's name
        raise ConfigError(f"{some_id!r} is not the name of a data set.")
    return tuple(_ogbench(name, split, url) for split in ("", "-val"))


def _d4rl(name: str, url: str | None) -> Wanted:
    path = D4RL_FILES[name]
    theirs, ours = path.rpartition("/")[2], f"{name}.hdf5"
    if url is not None:
        base = url.rstrip("/")
        whole = base.endswith((".hdf5", ".h5"))
        return Wanted(ours, (base,) if whole else tuple(dict.fromkeys((f"{base}/{theirs}", f"{base}/{ours}"))))
    official = f"{D4RL_URL}/{path}"
    # D4RL itself spells http; that is the last resort, should the host's certificate fail.
    last = official.replace("https://", "http://", 1)
    return Wanted(ours, (official, f"{_hub()}/{_D4RL_MIRROR}/{theirs}", last))


def _ogbench(dataset: str, split: str, url: str | None) -> Wanted:
    name = f"{dataset}{split}.npz"
    if url is not None:
        base = url.rstrip("/")
        whole = base.endswith(".npz")
        address = f"{base.removesuffix('.npz')}{split}.npz" if whole else f"{base}/{name}"
        return Wanted(name, (address,), KNOWN_SHA256.get(name))
    with quiet():
        from ogbench.utils import DATASET_URL
    mirrors = (f"{_hub()}/{mirror}/{name}" for mirror in _OGBENCH_MIRRORS)
    return Wanted(name, (f"{DATASET_URL}/{name}", *mirrors), KNOWN_SHA256.get(name))


def _hub() -> str:
    """Hugging Face's data sets; HF_ENDPOINT is the variable of its own tools for another door to it."""
    return f"{(os.environ.get('HF_ENDPOINT') or 'https://huggingface.co').rstrip('/')}/datasets"
