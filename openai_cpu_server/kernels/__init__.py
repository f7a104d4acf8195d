"""C++ kernels that replace some of ggml's.

`build` compiles them when the package is installed; `llama.loading` requests them when a model is loaded. A
kernel is switched on only after it has reproduced ggml's results in this process. Without it everything
works, only slower.
"""
