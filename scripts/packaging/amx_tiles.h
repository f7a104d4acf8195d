// Included in front of llama.cpp's sources where they are compiled for a CPU with AMX.
//
// The headers of GCC 12 tell the optimiser that loading the tiles' shape
// reads 8 of its 64 bytes, and that loading a tile reads none: it leaves out the stores that fill them, and the
// first tile instruction of ggml's ends the process with SIGILL. Here both say that they read memory.
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

#define _tile_loadconfig(shape) __asm__ volatile("ldtilecfg %0" ::"m"(*(const char(*)[64])(shape)))
#undef _tile_loadd
#define _tile_loadd(tile, base, stride) tile_load_from_memory(tile, base, stride)
// Its argument is a macro (TMM0 is 0) that shall be its number by now.
#define tile_load_from_memory(tile, base, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"((const void*)(base)), "r"((long)(stride)) : "memory")
#endif
