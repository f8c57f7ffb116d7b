"""The detector's parts as they run: folded norms, fused kernels, recorded CUDA calls, and the modes that choose them.

In exact mode they differ from ../network by rounding only. Learned and saved tensors stay there. Read
inference_network.py first.
"""
