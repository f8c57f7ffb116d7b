"""A hash that a smaller or recompressed copy of a picture shares: pHash, 64 bits of the low frequencies of a DCT."""

from __future__ import annotations

import cv2
import numpy as np

NUM_BITS = 64
_SIDE, _LOW = 32, 8
_LEAST_BITS = 16  # half of the bits lie above the median, unless most frequencies are 0


def perceptual_hash(pixels_bgr: np.ndarray) -> str:
    """
    Args:
        pixels_bgr: (H, W, 3) uint8.
    Returns:
        16 hex digits: which of the 8x8 lowest frequencies of 32x32 grey pixels lie above their median.
    """
    grey = cv2.resize(cv2.cvtColor(pixels_bgr, cv2.COLOR_BGR2GRAY), (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
    low = cv2.dct(grey.astype(np.float32))[:_LOW, :_LOW].ravel()
    # The first is the mean brightness, which tells nothing of what is shown.
    bits = low > np.median(low[1:])
    return np.packbits(bits).tobytes().hex()


def tells_something(phashes_N: np.ndarray) -> np.ndarray:
    """(N,) bool: whether a hash, (N,) uint64, can tell its picture from others. That of an even or smooth one cannot:
    pictures of one colour have one hash, whatever the colour."""
    return np.bitwise_count(phashes_N) >= _LEAST_BITS
