"""Which processor this is, for the few figures of true-size or long runs that its kernels decide."""

from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
# Seen on an Ice Lake Xeon (2026-11-24); AMD's EPYC keeps the bars without exception.
ON_INTEL = _CPUINFO.exists() and "GenuineIntel" in _CPUINFO.read_text()
