// The tile instructions: the CPU's where the library is compiled for AMX, else plain C++ with the same results to the
// last bit, so that tests of kernels run on any machine. There are eight tiles of 16 rows of 64 bytes.
//
// A thread may use tiles if why_no_tiles() is null (always, where they are emulated), between configure() and
// release(). Kernels configure once for each node: a thread with live tiles has 8 KiB more to save at each switch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu.hpp"
#include "simd.hpp"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__AVX512BF16__) && defined(__AVX512FP16__)
#define HAS_TILES
#endif

namespace amx {

#if defined(HAS_TILES)
constexpr bool IS_EMULATED = false;
#else
constexpr bool IS_EMULATED = true;
#endif

// Returns the reason why this process may not use the CPU's tiles, or null. The first call requests permission from the
// kernel, for all threads.
const char* why_no_tiles();

constexpr int TILE_ROWS = 16, TILE_BYTES = 1024;

// ---- bf16: the upper half of an f32. As in the CPU's conversions and tiles, denormal numbers are zeros.

inline uint16_t to_bf16(float number) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
    if (magnitude < 0x00800000) return uint16_t(bits >> 16 & 0x8000);
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Stores 32 numbers times a factor.
inline void store_bf16(uint16_t* to, const float* from, float factor = 1) {
#if defined(__AVX512BF16__)
    const __m512 times = _mm512_set1_ps(factor);
    const auto part = [&](int i) { return _mm512_mul_ps(_mm512_loadu_ps(from + i), times); };
    const __m512bh both = _mm512_cvtne2ps_pbh(part(16), part(0));
    std::memcpy(to, &both, sizeof both);
#else
    for (int i = 0; i < 32; i++) to[i] = to_bf16(from[i] * factor);
#endif
}

// Converts two rows of numbers to one row of pairs of bf16.
inline simd::ints bf16_pairs(simd::floats even, simd::floats odd) {
#if defined(HAS_TILES)
    alignas(64) static constexpr uint16_t ORDER[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                       8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
    return (simd::ints)_mm512_permutexvar_epi16(_mm512_load_si512(ORDER), both);
#else
    simd::ints pairs;
    for (int i = 0; i < simd::LANES; ++i) pairs[i] = int32_t(to_bf16(even[i]) | uint32_t{to_bf16(odd[i])} << 16);
    return pairs;
#endif
}

#if defined(HAS_TILES)

struct alignas(64) Configuration {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
inline thread_local Configuration before;

// All tiles with 16 rows of 64 bytes. ggml configures a thread's tiles once and relies on it, so release()
// restores the earlier configuration, or releases the tiles without one.
inline void configure() {
    Configuration shape{};
    shape.palette = 1;
    for (int tile = 0; tile < 8; tile++) shape.row_bytes[tile] = 64, shape.rows[tile] = TILE_ROWS;
    asm volatile("sttilecfg %0" : "=m"(before)::"memory");
    asm volatile("ldtilecfg %0" ::"m"(shape) : "memory");
}
inline void release() { asm volatile("ldtilecfg %0" ::"m"(before) : "memory"); }

// Assembly, because GCC 12's intrinsics do not declare that they read or write memory: GCC would move stores of unpacked
// weights behind the load of their tile, or leave them out.
template <int TILE>
inline void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(TILE));
}
template <int TILE>
inline void load(const void* from, size_t stride = 64) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(TILE) : "memory");
}
// Loads data that is not needed again soon, so that it does not evict other data from the first cache.
template <int TILE>
inline void load_once(const void* from, size_t stride = 64) {
    asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(TILE) : "memory");
}
template <int TILE>
inline void store(void* to, size_t stride = 64) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(TILE) : "memory");
}
// TO[m][n] += sum over k of A[m][k] * B[k / 2][2 n + k % 2], of bf16, for 16 m, 16 n, 32 k.
template <int TO, int A, int B>
inline void multiply_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(TO), "i"(A), "i"(B));
}
// TO[m][n] += sum over k of A[m][k] * B[k / 4][4 n + k % 4], of signed bytes, for 16 m, 16 n, 64 k.
template <int TO, int A, int B>
inline void multiply_bytes() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(TO), "i"(A), "i"(B));
}

#else

struct alignas(64) Tile {
    uint8_t rows[TILE_ROWS][64];
};
inline thread_local Tile tiles[8];

inline void configure() { std::memset(tiles, 0, sizeof tiles); }
inline void release() {}

template <int TILE>
inline void zero() {
    std::memset(&tiles[TILE], 0, sizeof(Tile));
}
template <int TILE>
inline void load(const void* from, size_t stride = 64) {
    const auto* row = static_cast<const uint8_t*>(from);
    for (int i = 0; i < TILE_ROWS; i++) std::memcpy(tiles[TILE].rows[i], row + i * stride, 64);
}
template <int TILE>
inline void load_once(const void* from, size_t stride = 64) {
    load<TILE>(from, stride);
}
template <int TILE>
inline void store(void* to, size_t stride = 64) {
    auto* row = static_cast<uint8_t*>(to);
    for (int i = 0; i < TILE_ROWS; i++) std::memcpy(row + i * stride, tiles[TILE].rows[i], 64);
}

// Adds the products of one tile to another: even and odd columns are summed apart, in order, with one rounding for each
// product; then even + odd is added to what was there. Denormal numbers are zeros everywhere.
void multiply_bf16(Tile& to, const Tile& a, const Tile& b);

template <int TO, int A, int B>
inline void multiply_bf16() {
    multiply_bf16(tiles[TO], tiles[A], tiles[B]);
}

void multiply_bytes(Tile& to, const Tile& a, const Tile& b);

template <int TO, int A, int B>
inline void multiply_bytes() {
    multiply_bytes(tiles[TO], tiles[A], tiles[B]);
}

#endif

}  // namespace amx
