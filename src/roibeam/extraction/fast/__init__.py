"""The detector's parts as they run: folded norms, fused kernels, recorded CUDA calls, and the modes that choose them.

In exact mode they differ from ../network by rounding only. What is learned and saved stays there. Read
inference_network.py first.
"""
