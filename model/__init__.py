"""Tensors in, tensors out: the vision-language models, their heads, losses and masking. Imports nothing of ours."""
