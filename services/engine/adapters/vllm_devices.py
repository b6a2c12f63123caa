"""Memory of NVIDIA devices, from their driver's library: no context is opened on any."""

from __future__ import annotations

from vllm.third_party import pynvml

from services.engine.ports import Devices
from shared.blackbox.layout import DeviceMemory

MAX_DEVICES = 8


def device_memory() -> Devices | None:
    """Return what reads the memory of all devices that this process may see; none where there is no driver."""
    try:
        pynvml.nvmlInit()
        count = min(pynvml.nvmlDeviceGetCount(), MAX_DEVICES)
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    except pynvml.NVMLError:
        return None

    def read() -> list[DeviceMemory]:
        try:
            memories = [pynvml.nvmlDeviceGetMemoryInfo(handle) for handle in handles]
        except pynvml.NVMLError:  # a device that fell off the bus
            return []
        return [DeviceMemory(int(memory.used), int(memory.total)) for memory in memories]

    return read
