"""Frames of videos and of encoded pictures, from files that may be damaged or hostile.

A file is opened as MP4 only and read through a file object, so it cannot lead to other files or to the network. Every
frame must have the size that the data set declares. A damaged frame is an error: decoders would fill it with grey.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fidec.data.columns import existing_file
from fidec.errors import DataError
from fidec.extras import require

CODECS = ("h264", "hevc", "av1", "libdav1d", "vp9", "mpeg4")
_CAMERAS = "reading cameras"


def video_frames(
    path: Path, times: np.ndarray, fps: float, size: tuple[int, int]
) -> Iterator[tuple[int, np.ndarray]]:
    """(index into `times`, frame) for each time in seconds, in one pass. The nearest frame counts.

    A frame is (height, width, 3) uint8. It is an error if none is within half a period of a time.
    """
    av = require("av", "lerobot", _CAMERAS)
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
