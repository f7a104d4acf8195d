// A panel: PANEL_DEPTH columns of ROWS rows of weights, unpacked to bytes and to one scale for each block of a row.
// A column holds the same four bytes of every row, so a vector multiplies as many rows as it has lanes.
#pragma once

#include <algorithm>
#include <type_traits>

#include "int8_lanes.hpp"

namespace products {

constexpr int PANEL_DEPTH = 256;
constexpr int ROWS = VECTORS * LANES;

// The same four bytes of each row, and a number for each row.
using Column = ints[VECTORS];
using Numbers = floats[VECTORS];

// A weight is scale * byte + offset; without offsets (they are a constant times the scale) the room is unused.
template <int BLOCK>
struct Panel {
    static constexpr int NUM_BLOCKS = PANEL_DEPTH / BLOCK;
    Column columns[PANEL_DEPTH / 4];
    Numbers scales[NUM_BLOCKS];
    Numbers offsets[NUM_BLOCKS];
};

// Factors of the sums of a block; for pairs, each number is there twice.
using Factor = std::conditional_t<HAS_PAIRS, pairs, ints>;

inline Factor factor_of(ints number) { return HAS_PAIRS ? (Factor)pair_of(number, number) : (Factor)number; }
inline ints number_of(Factor factor) { return HAS_PAIRS ? (ints)factor >> 16 : (ints)factor; }

// As Panel, where a whole row of a panel has one unit: scales and offsets stay integers, and so do sums over blocks.
// A weight is unit * scale * byte + offset_unit * offset.
template <int BLOCK>
struct IntegerPanel {
    static constexpr int NUM_BLOCKS = PANEL_DEPTH / BLOCK;
    Column columns[PANEL_DEPTH / 4];
    Factor scales[NUM_BLOCKS][VECTORS];
    pairs offsets[NUM_BLOCKS / 2][VECTORS];  // of two blocks
    Numbers unit, offset_unit;
};

// 32 weights of one row as bytes, or numbers made from them, also where vectors are wider or narrower.
typedef int32_t words __attribute__((vector_size(32)));

struct Two {
    words first, second;
};

// Prefetches the next weights into the second cache, a little at each step: the memory drops requests that
// come in a heap. A tile's rows do not fit into the first cache, and what waits for a place there is too little to keep
// the memory busy. (Measured, Zen 4, two threads, one row of Q4_K, Q6_K, Q8_0: 49, 31, 27 G multiply-adds/s; into the
// first cache 51, 23, 21; left to the hardware 12, 9, 17. Sixteen rows: 239, 176, 199; into the first 217, 103, 149.)
class Prefetch {
public:
    Prefetch(const uint8_t* first, size_t size) : next_{first}, end_{first + size} {}

    // Fetches as many bytes ahead as have just been read. The number is a constant wherever this is called, so the loop is
    // unrolled; it may fetch a little behind the end, which costs less than to look at each line.
    void step(int num_bytes) {
        if (next_ >= end_) return;
        for (int line = 0; line < num_bytes; line += CACHE_LINE) __builtin_prefetch(next_ + line, READ, SECOND_CACHE);
        next_ += num_bytes;
    }

private:
    static constexpr int CACHE_LINE = 64, READ = 0, SECOND_CACHE = 2;
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

// Four words of each of ROWS rows.
ALWAYS_INLINE void transpose_rows(const uint8_t* first, size_t stride, Column* columns) {
    for (int vector = 0; vector < VECTORS; vector++) {
        ints words[4];
        transpose_words(first + vector * LANES * stride, stride, words);
        for (int word = 0; word < 4; word++) columns[word][vector] = words[word];
    }
}

// The same of packed weights.
ALWAYS_INLINE void read_words(PackedRows rows, Column* columns) {
    rows.prefetch->step(4 * sizeof *columns);
    transpose_rows(rows.first, rows.stride, columns);
}

ALWAYS_INLINE void split_nibbles(const Column& packed, Column& low, Column& high) {
    for (int vector = 0; vector < VECTORS; vector++) {
        low[vector] = packed[vector] & 0x0f0f0f0f;
        high[vector] = (packed[vector] >> 4) & 0x0f0f0f0f;
    }
}

// 16 bytes of each row hold 16 weights in their low halves and 16 others in their high halves.
ALWAYS_INLINE void unpack_nibbles(PackedRows rows, Column* low, Column* high) {
    Column packed[4];
    read_words(rows, packed);
    for (int word = 0; word < 4; word++) split_nibbles(packed[word], low[word], high[word]);
}

ALWAYS_INLINE void look_up_columns(const ByteTable& table, Column* columns, int count) {
    for (int column = 0; column < count; column++)
        for (ints& places : columns[column]) places = look_up(table, places);
}

// The values of IQ4_NL and IQ4_XS as signed bytes, to which BYTE_BIAS was added.
constexpr int8_t biased(int value) { return static_cast<int8_t>(value + BYTE_BIAS); }
inline constexpr ByteTable IQ4_VALUES{{biased(-127), biased(-104), biased(-83), biased(-65), biased(-49), biased(-35),
                                biased(-22), biased(-10), biased(1), biased(13), biased(25), biased(38), biased(53),
                                biased(69), biased(89), biased(113)}};

}  // namespace products
