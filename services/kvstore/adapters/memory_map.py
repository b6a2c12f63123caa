"""Where memory is: the address of a view, and of a file's map in this process."""

from __future__ import annotations

import ctypes
from pathlib import Path


class _Buffer(ctypes.Structure):
    """Python's `Py_buffer`."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_get = ctypes.pythonapi.PyObject_GetBuffer
_get.argtypes = (ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int)
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = (ctypes.POINTER(_Buffer),)


def address_of(view: memoryview) -> int:
    """Return the address of the view's first byte, also of a view that cannot be written."""
    buffer = _Buffer()
    _get(view, ctypes.byref(buffer), 0)
    try:
        return int(buffer.buf or 0)
    finally:
        _release(ctypes.byref(buffer))


def map_base(file: Path) -> int:
    """Return where the file's first byte is mapped; 0: it is not, or cannot be found."""
    number = file.stat().st_ino
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, _, inode, *path = line.split(maxsplit=5)
        if int(inode) == number and int(offset, 16) == 0 and path and path[0].endswith(file.name):
            return int(span.partition("-")[0], 16)
    return 0
