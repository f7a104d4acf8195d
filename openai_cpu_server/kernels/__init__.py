"""C++ kernels that replace some of ggml's, compiled when the package is installed.

A kernel is switched on only after it has reproduced ggml's results in this process. Without kernels the
server is only slower.
"""
