"""Cards as amdgpu and nvidia-smi show them, for tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocmforge.gpu import cuda


def card(root: Path) -> Path:
    """Write a Radeon as amdgpu shows it: node 1 of the topology, at 0000:03:00.0."""
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    device = root / "sys/bus/pci/devices/0000:03:00.0"
    files = {
        nodes / "0/properties": "simd_count 0\ngfx_target_version 0\nlocation_id 0\ndomain 0\n",
        nodes / "1/properties": "gfx_target_version 110000\nlocation_id 768\ndomain 0\n",
        nodes / "1/gpu_id": "54321\n",
        device / "gpu_busy_percent": "97\n",
        device / "mem_info_vram_used": "8589934592\n",
        device / "hwmon/hwmon3/freq1_input": "2371000000\n",
        device / "hwmon/hwmon3/freq2_input": "1249000000\n",
        device / "hwmon/hwmon3/power1_average": "287000000\n",
        device / "hwmon/hwmon3/temp1_input": "61000\n",
        device / "hwmon/hwmon3/temp2_input": "83000\n",
        root / "sys/class/kfd/kfd/proc/4242/vram_54321": "1048576\n",
        root / "sys/class/kfd/kfd/proc/4343/vram_54321": "0\n",
        root / "sys/class/kfd/kfd/proc/4444/vram_999": "1048576\n",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return device


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an nvidia-smi on the path that prints, and notes how it was called; CUDA has a GPU 1."""
    monkeypatch.setattr(cuda, "pci_address", {1: "0000:19:00.0"}.get)
    program = folder / "nvidia-smi"
    program.write_text(
        f"""#!/bin/sh
echo "$@" >> {folder}/calls
case "$*" in
  *compute-apps*) echo 77; exit;;
  *loop-ms*) while :; do echo '1980, 3201, 512.25, 51, 98, 8123, 0x0000000000000040'
             sleep 0.05; done;;
  *) echo '345, 3201, 79.83, 36, 40, 0, 0x0000000000000001';;
esac
""",
        encoding="utf-8",
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
