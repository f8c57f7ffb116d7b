"""The detector's parts as they run: folded norms, fused kernels, recorded CUDA calls, and the modes that choose them.

Same numbers as ../network to the bit in exact mode. What is learned and saved stays there. Read inference_network.py
first.
"""
