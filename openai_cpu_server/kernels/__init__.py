"""Kernels of our own in front of ggml's: a small C++ library, found, proved and switched on here.

`llama.loading` asks for them when a model is loaded; `build` compiles them when the package is installed.
Promises: a kernel is on only after it has shown ggml's own results in this very process; without it
everything works, only slower. Whoever has loaded ggml hands it over.
"""
