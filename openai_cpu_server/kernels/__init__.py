"""C++ kernels that replace some of ggml's: built, proved and switched on here.

`llama.loading` requests them when a model is loaded; `build` compiles them when the package is installed. A
kernel is switched on only after it has reproduced ggml's results in this process, and without it everything
works, only slower. The caller passes in the loaded ggml library.
"""
