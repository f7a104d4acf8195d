"""Kernels of our own in front of ggml's: a small C++ library, found, proved and switched on here."""
