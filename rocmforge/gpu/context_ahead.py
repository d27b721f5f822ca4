"""Opens an NVIDIA GPU in a thread while Python still imports: driver and context take 0.2 s.

It uses the driver's library alone, by ctypes: cuda-bindings would first have to be imported. AMD's
runtime is not opened ahead: only hip-python knows which library it is.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rocmforge import env
from rocmforge.errors import DeviceError
from rocmforge.gpu.packages import NVIDIA_DRIVER, has_amd_driver

STACK_BYTES = 0
"""Of each thread that the GPU can run; the driver's own default of 1,024 takes 264 MiB of an H200.
`CudaRuntime.function` makes it larger for a kernel that says how much it needs. Only recursion,
which none of our kernels has, does not say so: a library of the same process that has some sets a
limit of its own. Where the device is open already, its limit stays."""

_STACK_LIMIT = 0  # CU_LIMIT_STACK_SIZE

_opening: _Opening | None = None


class _Opening(threading.Thread):
    """Opens a device; `device` is its handle then.

    It is no daemon: the process may not end while the driver starts.
    """

    def __init__(self, index: int | None) -> None:
        super().__init__(name="context ahead")
        self._index = index
        self._driver: ctypes.CDLL
        self.device: ctypes.c_int | None = None

    def run(self) -> None:
        with suppress(OSError, AttributeError, DeviceError):  # `CudaRuntime` will say what is wrong
            self._driver = ctypes.CDLL(NVIDIA_DRIVER)
            self._open()

    def _open(self) -> None:
        count, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        flags, active = ctypes.c_uint(), ctypes.c_int()
        self._call("cuInit", 0)
        self._call("cuDeviceGetCount", ctypes.byref(count))
        if self._index is None and count.value != 1:
            return
        self._call("cuDeviceGet", ctypes.byref(device), self._index or 0)
        state = ctypes.byref(flags), ctypes.byref(active)
        self._call("cuDevicePrimaryCtxGetState", device, *state)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.device = device
        if not active.value:
            self._call("cuCtxSetCurrent", context)
            self._call("cuCtxSetLimit", _STACK_LIMIT, ctypes.c_size_t(STACK_BYTES))

    def let_go(self) -> None:
        """Give back what `run` opened; what others have opened meanwhile stays open."""
        if self.device is not None:
            self._driver.cuDevicePrimaryCtxRelease_v2(self.device)  # as cuda-bindings does

    def _call(self, name: str, *arguments: object) -> None:
        if getattr(self._driver, name)(*arguments) != 0:
            raise DeviceError(name)


@contextmanager
def opening_ahead(device: str | None) -> Iterator[None]:
    """Begin to open the GPU on which a model will lie, if it is clear which one that is.

    With one NVIDIA GPU, or a numbered one, that GPU is opened. With several and no number, only the
    driver is started. With an AMD GPU, the CPU or several devices nothing happens. What the driver
    refuses is left to `CudaRuntime`. What nobody has taken over is let go at the end.

    Parameters
    ----------
    device
        Its name, or several, as of `rocmforge.devices.chosen_devices`.
    """
    global _opening
    names = [env.device()] if device is None else env.split_devices(device)
    kind, index = env.split_device(names[0])
    nvidia = kind == "cuda" or (kind == "auto" and not has_amd_driver())
    if nvidia and len(names) == 1:
        opening = _Opening(index)
        with suppress(RuntimeError):  # no more threads
            opening.start()
            _opening = opening
    try:
        yield
    finally:
        with opened_ahead():
            pass


@contextmanager
def opened_ahead() -> Iterator[None]:
    """Keep open what `opening_ahead` has opened, until the caller has opened its device."""
    global _opening
    opening, _opening = _opening, None
    if opening is None:
        yield
        return
    try:
        opening.join()
        yield
    finally:
        opening.join()  # again, where Ctrl-C ended the first one
        opening.let_go()
