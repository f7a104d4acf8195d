// A panel: PANEL_DEPTH columns of ROWS rows of weights, unpacked to bytes and to one scale for each block of a row.
// A column holds the same four bytes of every row, so a vector multiplies as many rows as it has lanes.
#pragma once

#include <algorithm>

#include "int8_lanes.hpp"

namespace products {

constexpr int PANEL_DEPTH = 256;
constexpr int ROWS = VECTORS * LANES;

// The same four bytes of each row.
using Column = uint32_t[ROWS];

// A weight is scale * byte + offset; without offsets (they are a constant times the scale) the room is unused.
template <int BLOCK>
struct Panel {
    static constexpr int NUM_BLOCKS = PANEL_DEPTH / BLOCK;
    alignas(64) Column columns[PANEL_DEPTH / 4];
    alignas(64) float scales[NUM_BLOCKS][ROWS];
    alignas(64) float offsets[NUM_BLOCKS][ROWS];
};

// Brings the weights that are needed next into the cache, a little at each step: the memory drops requests that come
// in a heap. (Measured, one thread, Q4_K, one row: 27 GB/s; with a heap for each panel 14; left to the hardware 8.)
class Prefetch {
public:
    Prefetch(const uint8_t* first, size_t size) : next_{first}, end_{first + size} {}

    // Fetches as much ahead as has just been read.
    void step(int num_bytes) {
        for (const uint8_t* end = std::min(next_ + num_bytes, end_); next_ < end; next_ += CACHE_LINE)
            __builtin_prefetch(next_);
    }

private:
    static constexpr int CACHE_LINE = 64;
    const uint8_t* next_;
    const uint8_t* end_;
};

// ROWS rows of packed weights, each `stride` bytes behind the one before.
struct PackedRows {
    const uint8_t* first;
    size_t stride;
    Prefetch* prefetch;

    PackedRows from(size_t byte) const { return {first + byte, stride, prefetch}; }
};

// One word of each row.
inline void read_word(PackedRows rows, Column& words) {
    rows.prefetch->step(sizeof words);
    for (int row = 0; row < ROWS; row++) std::memcpy(words + row, rows.first + row * rows.stride, 4);
}

// Four words of each row.
inline void read_words(PackedRows rows, Column* columns) {
    rows.prefetch->step(4 * sizeof *columns);
    for (int lane = 0; lane < ROWS; lane += LANES)
        transpose_words(rows.first + lane * rows.stride, rows.stride, columns[0] + lane, ROWS);
}

// The half-precision numbers in the low halves of words.
inline void low_halves(const Column& words, float* numbers) {
    uint16_t halves[ROWS];
    for (int row = 0; row < ROWS; row++) halves[row] = static_cast<uint16_t>(words[row]);
    for (int lane = 0; lane < ROWS; lane += LANES) simd::store(numbers + lane, simd::load_f16(halves + lane));
}

inline void high_halves(const Column& words, float* numbers) {
    alignas(64) Column shifted;
    for (int row = 0; row < ROWS; row++) shifted[row] = words[row] >> 16;
    low_halves(shifted, numbers);
}

inline void split_nibbles(const Column& packed, Column& low, Column& high) {
    for (int row = 0; row < ROWS; row++) {
        low[row] = packed[row] & 0x0f0f0f0f;
        high[row] = (packed[row] >> 4) & 0x0f0f0f0f;
    }
}

}  // namespace products
