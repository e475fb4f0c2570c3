"""Whole networks of PyTorch, by Vortex and by others."""
