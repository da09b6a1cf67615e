"""Blocks in pages of a device."""

from __future__ import annotations

from tests.core.host_device import HostDevice, HostDriver
from tests.regions.kv.links import BLOCK

from skerry_core.device_pages import DevicePages


def device_pages(count: int, *, opens: bool = True) -> DevicePages:
    return DevicePages(HostDevice(HostDriver(opens=opens)), BLOCK, count)
