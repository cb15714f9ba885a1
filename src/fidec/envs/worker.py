"""What runs in an environment's own process.

Only the standard library is imported at module level. The process first sets how it ends, the number of NumPy's
threads and the OpenGL backend, and then unpickles (and so imports) the environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import random
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import connection, parent_process
from typing import Any

from fidec.errors import ConfigError


class Invalid(Exception):
    """An environment returned something that cannot be an observation or a reward."""


_FIDEC = os.path.dirname(os.path.dirname(__file__)) + os.sep
_LIBRARIES = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib"))
_LARGEST = 3.4e38  # of a reward: it is stored as float32, and sums and means of such numbers stay finite
SAFE_PATH = "PYTHONSAFEPATH"  # only for the start of this process, not for those that the environment starts
STEP = ("observation", "reward", "terminated", "truncated", "info")


def main(pipe: connection.Connection, parent_pid: int, payload: bytes, environ: dict[str, str | None]) -> None:
    """Make the environment, report ("ready", facts), then answer commands until the pipe closes."""
    _die_with_parent(parent_pid)
    os.dup2(2, 1)  # stdout carries the caller's results; an environment that prints must not mix with them
    set_environ(environ)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # one core for each environment
    env = None
    try:
        # The bytes come from the parent process over its own pipe, never from a file.
        env = pickle.loads(payload)()
        facts = _describe_spaces(env)
        _return_memory()
    except ConfigError as error:
        _send(pipe, ("refused", str(error)))
    except BaseException as error:
        _send(pipe, ("crashed", describe(error)))
    else:
        _send(pipe, ("ready", facts))
        _serve(pipe, env, facts)
    finally:
        with contextlib.suppress(BaseException):
            if "fidec.envs.render" in sys.modules:
                sys.modules["fidec.envs.render"].close()
            if env is not None:
                env.close()


def set_environ(values: Mapping[str, str | None]) -> None:
    """Set environment variables; None removes one."""
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _serve(pipe: connection.Connection, env: Any, facts: dict[str, Any]) -> None:
    commands = _commands(env, facts)
    while True:
        try:
            name, argument = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            reply = ("ok", commands[name](argument))
        except Invalid as error:
            reply = ("invalid", str(error))
        except BaseException as error:
            reply = ("crashed", describe(error))
        if not _send(pipe, reply):
            return


def _commands(env: Any, facts: dict[str, Any]) -> dict[str, Callable[[Any], Any]]:
    import numpy as np

    low, high = env.action_space.low, env.action_space.high
    identity = bool(np.all(low == -1) and np.all(high == 1))

    def checked(name: str, value: Any, shape: tuple[int, ...], dtype: str) -> Any:
        array = np.asarray(value)
        if array.shape != shape:
            raise Invalid(f"{name} has shape {array.shape}, its space says {shape}")
        array = array.astype(dtype, copy=False)
        if array.dtype != np.uint8 and not np.isfinite(array).all():
            where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise Invalid(f"{name} is {array[where]} at index {where}")
        return array

    def observation(value: Any) -> Any:
        shape, dtype = facts["shape"], facts["dtype"]
        if not isinstance(shape, dict):
            return checked("observation", value, shape, dtype)
        for name in shape:
            if not isinstance(value, Mapping) or name not in value:
                raise Invalid(f"observation has no part {name!r}, its space says it has")
        return {name: checked(f"observation[{name!r}]", value[name], shape[name], dtype[name]) for name in shape}

    def number(name: str, value: Any) -> float:
        """One number, also as an array with one element. Text is not a number."""
        with contextlib.suppress(TypeError, ValueError):
            array = np.asarray(value)
            if array.size == 1 and array.dtype.kind in "biuf":
                return float(array.item())
        raise Invalid(f"{name} is {str(value)[:60]!r}; expected one number")

    def unpack(name: str, result: Any, parts: tuple[str, ...]) -> Any:
        if not isinstance(result, tuple) or len(result) != len(parts):
            what = f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"
            raise Invalid(f"{name}() returned {what}; Gymnasium's returns ({', '.join(parts)})")
        return result

    def reset(seed: int) -> Any:
        random.seed(seed)
        np.random.seed(seed % 2**32)  # some environments draw from the global generator while they step
        return observation(unpack("reset", env.reset(seed=seed), ("observation", "info"))[0])

    def step(action: Any) -> tuple[Any, float, bool, bool, float | None]:
        action = np.clip(action, -1, 1)
        if not identity:
            action = low + (action + 1) * 0.5 * (high - low)
        result = env.step(action.astype(env.action_space.dtype))
        value, reward, terminated, truncated, info = unpack("step", result, STEP)
        reward = number("reward", reward)
        if not abs(reward) <= _LARGEST:
            raise Invalid(f"reward is {reward}; expected a finite number that float32 can hold")
        success = info.get("success", info.get("is_success"))
        success = None if success is None else number("success", success)
        if success is not None and not 0 <= success <= 1:
            raise Invalid(f"success is {success}; expected 0 or 1, or a number between them")
        terminated, truncated = bool(number("terminated", terminated)), bool(number("truncated", truncated))
        return observation(value), reward, terminated, truncated, success

    def render(size: int) -> Any:
        from fidec.envs.render import frame

        return frame(env, size)

    def drawing(_: Any) -> Any:
        from fidec.envs.render import drawing

        return drawing(env)

    return {"reset": reset, "step": step, "render": render, "drawing": drawing}


def _describe_spaces(env: Any) -> dict[str, Any]:
    import numpy as np
    from gymnasium.spaces import Box, Dict

    name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    observations, actions = env.observation_space, env.action_space
    parts: dict[str, Any] = dict(observations.spaces) if isinstance(observations, Dict) else {"": observations}
    for part, space in parts.items():
        if not isinstance(space, Box):
            which = f" in the part {part!r}" if part else ""
            hint = "; gymnasium.wrappers.FlattenObservation makes one of a Dict" if isinstance(space, Dict) else ""
            raise ConfigError(
                f"the environment {name} has the observation space {space}{which}; expected a Box{hint}"
            )
    if not isinstance(actions, Box) or len(actions.shape) != 1:
        raise ConfigError(f"the environment {name} has the action space {actions}; expected a Box with one axis")
    if not (np.isfinite(actions.low).all() and np.isfinite(actions.high).all()):
        raise ConfigError(
            f"the environment {name} has the action space {actions}; expected finite bounds "
            "(gymnasium.wrappers.RescaleAction or ClipAction set them)"
        )
    fps = (getattr(env, "metadata", None) or {}).get("render_fps")
    shapes = {part: tuple(space.shape) for part, space in parts.items()}
    types = {part: "uint8" if space.dtype == np.uint8 else "float32" for part, space in parts.items()}
    several = isinstance(observations, Dict)
    return {
        "shape": shapes if several else shapes[""],
        "dtype": types if several else types[""],
        "unused": getattr(env, "unused", ()),
        "action_dim": int(actions.shape[0]),
        "action_low": actions.low.tolist(),
        "action_high": actions.high.tolist(),
        "render_fps": float(fps) if isinstance(fps, int | float | np.number) else None,
    }


def _return_memory() -> None:
    """Give back the memory that only making the scene needed: about a quarter of an OGBench arm's 510 MB."""
    gc.collect()
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):  # a C library without malloc_trim
            ctypes.CDLL(None).malloc_trim(0)


def describe(error: BaseException) -> str:
    """An exception as one line: its type, its message, and the line of code that raised it or its cause."""
    message = error.msg if isinstance(error, SyntaxError) else error  # its text would name the file twice
    text = " ".join(str(message).split())[:300]
    where = f" ({place})" if (place := _place(error)) else ""
    return f"{type(error).__name__}: {text}{where}" if text else f"{type(error).__name__}{where}"


def _place(error: BaseException) -> str | None:
    """FILE:LINE of an exception's cause: the last line of the user's code, else of a library, else of fidec."""
    while error.__cause__ is not None:
        error = error.__cause__
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno))
    places = [place for place in places if not place[0].startswith("<frozen")]  # Python's import
    others = [place for place in places if not place[0].startswith(_FIDEC)]
    users = [place for place in others if not place[0].startswith(_LIBRARIES)]
    last = (users or others or places or [None])[-1]
    return f"{os.path.basename(last[0])}:{last[1]}" if last else None


def _send(pipe: connection.Connection, message: Any) -> bool:
    try:
        pipe.send(message)
    except OSError:
        return False
    return True


def _die_with_parent(parent_pid: int) -> None:
    """End when the parent ends, and not before it.

    The parent handles a signal to the whole process group (Ctrl-C, a scheduler's SIGTERM): it may finish the
    evaluation. This process leads a group of its own, with which the parent ends what an environment has started. A
    thread ends this process when the parent is gone. On Linux the kernel does so too, which also works when an
    environment hangs in C code without releasing the interpreter lock.
    """
    if hasattr(os, "setsid"):
        with contextlib.suppress(OSError):
            os.setsid()
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            connection.wait([parent.sentinel])
        os._exit(1)

    if parent is not None:
        threading.Thread(target=watch, daemon=True).start()
    if hasattr(os, "getppid") and os.getppid() != parent_pid:  # the parent ended before this point
        os._exit(1)
