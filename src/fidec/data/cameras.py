"""Cameras of robots' data: which ones a source text names, their size, and their frames as one mapped array.

lerobot:DIR?cameras=front,wrist&size=64x64&holes=allow

Frames are decoded and resized once, into the directory `.fidec-unpacked` beside the data (see `cache.kept_copy`).
Videos and encoded pictures may be damaged or hostile. A video is opened as MP4 only and read through a file object:
it cannot lead to other files or to the network. Every frame must have the size that the data set declares. A damaged
frame is an error: decoders would fill it with grey.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.lib import format as npy

from fidec.console import Progress
from fidec.data.cache import kept_copy
from fidec.data.columns import existing_file
from fidec.data.dataset import STATE
from fidec.data.disk_array import FileRows, worth_mapping
from fidec.errors import ConfigError, DataError
from fidec.extras import require
from fidec.register import unknown

LARGEST = 4096  # pixels of a side
_OPTIONS = re.compile(r"\?((?:[a-z_]+=[^?&=]*)(?:&[a-z_]+=[^?&=]*)*)$")
_KEYS = ("cameras", "size", "holes")


@dataclass(frozen=True)
class Cameras:
    """The options of a source text."""

    names: tuple[str, ...] = ()
    """As the user wrote them; `all` is every camera."""
    size: tuple[int, int] | None = None
    """Height and width; None keeps the size of each camera."""
    holes: bool = False
    """LeRobot only: whether frames and episodes may be missing."""

    def chosen(self, where: str, known: Sequence[str]) -> dict[str, str]:
        """{name of the part: camera}. The last part of a camera's name is enough if only one camera has it."""
        if self.names and not known:
            raise ConfigError(f"{where}: has no camera. Leave out ?cameras={','.join(self.names)}")
        if self.names == ("all",):
            return Cameras(tuple(known)).chosen(where, known)
        found = {}
        for name in self.names:
            own = [each for each in known if each == name] or [each for each in known if each.endswith(f".{name}")]
            if not own:
                raise ConfigError(f"{where}: {unknown('camera', name, known)}")
            if len(own) > 1:
                raise ConfigError(f"{where}: camera {name!r} may be {' or '.join(own)}; give the whole name")
            found[name.rpartition(".")[2]] = own[0]
        if len(found) != len(self.names):
            raise ConfigError(f"{where}: cameras={','.join(self.names)} has two of the same name")
        if STATE in found:
            raise ConfigError(f"{where}: a camera is called {STATE!r}, as the part with the vectors is. Rename it")
        return found


def split_cameras(what: str) -> tuple[str, Cameras]:
    """The path of a source text, and its options after a question mark."""
    match = _OPTIONS.search(what)
    if match is None:
        return what, Cameras()
    given = dict(pair.split("=", 1) for pair in match[1].split("&"))
    for key in given:
        if key not in _KEYS:
            raise ConfigError(f"{what!r}: {unknown('option', key, _KEYS)}")
    if given.get("holes", "allow") != "allow":
        raise ConfigError(f"{what!r}: holes is {given['holes']!r}; expected allow")
    names = tuple(filter(None, given.get("cameras", "").split(",")))
    if not names and set(given) != {"holes"}:
        raise ConfigError(
            f"{what!r} names no camera; expected such as ?cameras=front,wrist&size=64x64, or cameras=all"
        )
    size = None
    if "size" in given:
        parts = re.fullmatch(r"(\d{1,5})x(\d{1,5})", given["size"])
        if parts is None or not all(1 <= int(side) <= LARGEST for side in parts.groups()):
            raise ConfigError(
                f"{what!r}: size is {given['size']!r}; expected HEIGHTxWIDTH, such as 64x64, at most {LARGEST} each"
            )
        size = int(parts[1]), int(parts[2])
    return match.string[: match.start()], Cameras(names, size, "holes" in given)


def with_state(state: np.ndarray, parts: dict[str, np.ndarray]) -> Any:
    """Vectors and cameras as one column of observations; a single array if there is only one."""
    whole = ({STATE: state} if state.shape[1] else {}) | parts
    return whole if len(whole) > 1 else next(iter(whole.values()))


def with_options(what: str, path: str) -> str:
    """Another path with the options of a source text."""
    return path + what[len(split_cameras(what)[0]) :]


def resize(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """(height, width, channels) uint8 as the average of the area under each new pixel, in exact arithmetic.

    The aspect ratio is not kept. Integers give the same bytes on every machine.
    """
    if image.shape[:2] == size:
        return image
    rows = _sums(image, size[0], np.int32).swapaxes(0, 1)
    sums = _sums(np.ascontiguousarray(rows), size[1], np.int64).swapaxes(0, 1)
    area = image.shape[0] * image.shape[1]
    return ((2 * sums + area) // (2 * area)).astype(np.uint8)  # rounded, halves up


def _sums(values: np.ndarray, count: int, dtype: type) -> np.ndarray:
    """Sums over `count` equal parts of the first axis, times `count` so that they are whole numbers."""
    whole, rest = np.divmod(
        np.arange(count + 1) * len(values), count
    )  # where parts begin: pixel, and 1 / count of it
    sums = np.add.reduceat(values, whole[:-1], axis=0, dtype=dtype)
    sums[whole[1:] == whole[:-1]] = 0  # parts smaller than a pixel
    edges = values[np.minimum(whole, len(values) - 1)].astype(dtype)
    edges *= rest.astype(dtype).reshape(-1, *(1,) * (values.ndim - 1))
    return count * sums - edges[:-1] + edges[1:]


def stored_frames(
    file: Path,
    folder: Path,
    name: str,
    origin: dict[str, Any],
    shape: tuple[int, ...],
    frames: Iterable[tuple[int, np.ndarray]],
) -> np.ndarray:
    """(rows, height, width, 3) uint8 from a kept copy. `frames` yields (row, image), and is read if there is none.

    `origin` identifies the content: hashes of the source's files, and how they were read.
    """
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    row_bytes = int(np.prod(shape[1:], dtype=np.int64))

    def write(out: IO[bytes]) -> None:
        npy.write_array_header_1_0(out, header)
        start, seen = out.tell(), np.zeros(shape[0], bool)
        with Progress(shape[0], name=f"reading {name}", unit="frame", enabled=shape[0] > 500) as progress:
            for row, image in frames:
                if image.shape != shape[1:] or image.dtype != np.uint8:
                    raise DataError(f"{file}: a frame is {image.shape} {image.dtype}; expected {shape[1:]} uint8")
                out.seek(start + row * row_bytes)
                out.write(np.ascontiguousarray(image).data)
                seen[row] = True
                progress.advance(1)
        if not seen.all():
            missing = int(np.argmin(seen))
            raise DataError(f"{file}: {name} has no frame for {int((~seen).sum())} rows, first for row {missing}")

    path = kept_copy(file, folder, f"{name}.npy", {"origin": "decoded", **origin}, 128 + shape[0] * row_bytes, write)
    if not worth_mapping(shape, np.dtype(np.uint8)):
        return np.load(path, allow_pickle=False)
    offset = path.stat().st_size - shape[0] * row_bytes
    return cast(np.ndarray, FileRows(open(path, "rb", buffering=0), np.uint8, offset, shape))


CODECS = ("h264", "hevc", "av1", "libdav1d", "vp9", "mpeg4")
_PURPOSE = "reading cameras"


def video_frames(
    path: Path, times: np.ndarray, fps: float, size: tuple[int, int]
) -> Iterator[tuple[int, np.ndarray]]:
    """(index into `times`, frame) for each time in seconds, in one pass. The nearest frame counts.

    A frame is (height, width, 3) uint8. It is an error if none is within half a period of a time.
    """
    av = require("av", "lerobot", _PURPOSE)
    order = np.argsort(times, kind="stable")
    done, before = 0, None
    try:
        with open(existing_file(path), "rb") as file, av.open(file, format="mp4") as container:
            for frame in _decode(path, container, size):
                while done < len(order) and times[order[done]] <= frame.time:
                    near = before is not None and 2 * times[order[done]] < before.time + frame.time
                    yield _matched(path, before if near else frame, order[done], times, fps)
                    done += 1
                if done == len(order):
                    return
                before = frame
    except (av.FFmpegError, OSError, ValueError, RuntimeError) as error:
        text = " ".join(str(error).split())[:160]
        raise DataError(f"{path}: cannot be decoded ({text}); the video is damaged or of another kind.") from error
    if before is None:
        raise DataError(f"{path}: has no frame; the video is damaged.")
    for index in order[done:]:  # after the last frame
        yield _matched(path, before, index, times, fps)


def _decode(path: Path, container: Any, size: tuple[int, int]) -> Iterator[Any]:
    if not container.streams.video:
        raise DataError(f"{path}: has no video.")
    stream = container.streams.video[0]
    context = stream.codec_context
    if context.name not in CODECS:
        raise DataError(f"{path}: its codec is {context.name}; read are {', '.join(CODECS)}.")
    context.options = {"err_detect": "explode"}
    stream.thread_type = "AUTO"
    last = None
    for frame in container.decode(stream):
        if (frame.height, frame.width) != size:
            found, declared = f"{frame.height} x {frame.width}", f"{size[0]} x {size[1]}"
            raise DataError(f"{path}: a frame has {found} pixels, and info.json says {declared}.")
        if frame.is_corrupt:
            raise DataError(f"{path}: the frame at {frame.time} s is damaged.")
        if frame.time is None or (last is not None and frame.time <= last):
            raise DataError(f"{path}: its frames have no increasing times (one at {frame.time} s after {last} s).")
        last = frame.time
        yield frame


def _matched(path: Path, frame: Any, index: np.integer, times: np.ndarray, fps: float) -> tuple[int, np.ndarray]:
    if abs(frame.time - times[index]) > 0.5 / fps + 1e-3:
        raise DataError(
            f"{path}: has no frame at {times[index]:.3f} s, the time of a row; the nearest is at {frame.time:.3f} s. "
            "The time stamps and the video do not belong together."
        )
    return int(index), frame.to_ndarray(format="rgb24")


def picture(where: str, content: Any, size: tuple[int, int]) -> np.ndarray:
    """(height, width, 3) uint8 from the bytes of a PNG or JPEG file."""
    from PIL import Image

    if not isinstance(content, bytes):
        raise DataError(f"{where}: the image is not stored in the table itself; only such images are read.")
    try:
        with Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
            if (image.height, image.width) != size:
                raise DataError(
                    f"{where}: has {image.height} x {image.width} pixels, and info.json says {size[0]} x {size[1]}."
                )
            return np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{where}: is not a readable PNG or JPEG image ({error}).") from error


def png(image: np.ndarray) -> bytes:
    """(height, width, 3) uint8 as a PNG file."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()
