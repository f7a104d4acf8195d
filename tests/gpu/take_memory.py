"""Occupies NVIDIA's first GPU but for so many bytes, prints a line, and holds the memory until stdin ends."""

import ctypes
import sys

cuda = ctypes.CDLL("libcuda.so.1")
context, free, total, memory = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(free.value - int(sys.argv[1]))) == 0
sys.stdout.write("taken\n")
sys.stdout.flush()
sys.stdin.read()
