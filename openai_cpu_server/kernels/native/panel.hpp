// A panel: PANEL_DEPTH columns of ROWS rows of weights, unpacked to bytes and to one scale for each block of a row.
// A column of words holds the same four bytes of every row, so a vector multiplies as many rows as it has lanes.
#pragma once

#include "int8_simd.hpp"

namespace products {

constexpr int PANEL_DEPTH = 256;
constexpr int ROWS = simd::VECTORS * simd::LANES;
constexpr int COLUMN = 4 * ROWS;  // bytes

// A weight is scale * byte + offset; without offsets (they are a constant times the scale) the room is unused.
template <int BLOCK>
struct Panel {
    static constexpr int NUM_BLOCKS = PANEL_DEPTH / BLOCK;
    alignas(64) uint8_t columns[PANEL_DEPTH / 4][COLUMN];
    alignas(64) float scales[NUM_BLOCKS][ROWS];
    alignas(64) float offsets[NUM_BLOCKS][ROWS];
};

// ROWS rows of packed weights, each `stride` bytes behind the one before.
struct PackedRows {
    const uint8_t* first;
    size_t stride;

    PackedRows from(size_t byte) const { return {first + byte, stride}; }
};

struct Words {
    alignas(64) uint32_t of_row[ROWS];
};

// One word of each row.
inline Words word_column(PackedRows rows) {
    Words words;
    for (int row = 0; row < ROWS; row++) words.of_row[row] = simd::load_word(rows.first + row * rows.stride);
    return words;
}

// Four words of each row as four columns.
inline void transpose_words(PackedRows rows, uint8_t (*columns)[COLUMN]) {
    for (int vector = 0; vector < simd::VECTORS; vector++) {
        const PackedRows part = rows.from(vector * simd::LANES * rows.stride);
        simd::transpose_words(part.first, part.stride, columns[0] + vector * 4 * simd::LANES, COLUMN);
    }
}

// The half-precision number in the low half of each word.
inline void low_halves(const Words& words, float* numbers) {
    for (int lane = 0; lane < ROWS; lane += simd::LANES) simd::store(numbers + lane, simd::halves(words.of_row + lane));
}

inline void high_halves(const Words& words, float* numbers) {
    Words shifted;
    for (int row = 0; row < ROWS; row++) shifted.of_row[row] = words.of_row[row] >> 16;
    low_halves(shifted, numbers);
}

inline void split_nibbles(const uint8_t* packed, uint8_t* low, uint8_t* high) {
    for (int byte = 0; byte < COLUMN; byte++) {
        low[byte] = packed[byte] & 15;
        high[byte] = packed[byte] >> 4;
    }
}

}  // namespace products
