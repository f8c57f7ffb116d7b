"""A hash that a smaller or recompressed copy of a picture shares: pHash, 64 bits of the low frequencies of a DCT."""

from __future__ import annotations

import cv2
import numpy as np

NUM_BITS = 64
_SIDE, _LOW = 32, 8


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
