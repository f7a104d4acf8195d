// Formats in blocks of 32 weights: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
// A format says how large its blocks are (BLOCK weights, BLOCK_BYTES bytes), for how many columns an activation keeps
// one scale (UNIT), what is subtracted from its bytes (BIAS), and how panels are unpacked.
#pragma once

#include "panel.hpp"

namespace products {

struct BlocksOf32 {
    static constexpr int BLOCK = 32;
    static constexpr int UNIT = 32;
    static constexpr int COLUMNS = BLOCK / 4;
    static constexpr bool HAS_WHOLE_BYTES = false;
    using Panel = products::Panel<BLOCK>;
};

// Byte j of a block's 16 holds weight j in its low half and weight 16 + j in its high half.
inline void unpack_nibbles(PackedRows rows, uint8_t (*columns)[COLUMN]) {
    alignas(64) uint8_t packed[4][COLUMN];
    transpose_words(rows, packed);
    for (int word = 0; word < 4; word++) split_nibbles(packed[word], columns[word], columns[4 + word]);
}

// Adds the fifth bits of 32 weights: bits 4 * column and on go to the four bytes of that column's word.
inline void add_fifth_bits(const Words& bits, uint8_t (*columns)[COLUMN]) {
    constexpr uint32_t BIT_TO_EACH_BYTE = 0x00204081, LOWEST_BITS = 0x01010101;
    for (int column = 0; column < 8; column++) {
        auto* words = reinterpret_cast<uint32_t*>(columns[column]);
        for (int row = 0; row < ROWS; row++) {
            const uint32_t four = (bits.of_row[row] >> (4 * column)) & 15;
            words[row] |= ((four * BIT_TO_EACH_BYTE) & LOWEST_BITS) << 4;
        }
    }
}

struct Q4_0 : BlocksOf32 {
    static constexpr int BLOCK_BYTES = 18, BIAS = 8;
    static constexpr bool HAS_OFFSETS = false;

    static void unpack(PackedRows rows, int block, Panel& panel) {
        low_halves(word_column(rows), panel.scales[block]);
        unpack_nibbles(rows.from(2), panel.columns + block * COLUMNS);
    }
};

struct Q4_1 : BlocksOf32 {
    static constexpr int BLOCK_BYTES = 20, BIAS = 0;
    static constexpr bool HAS_OFFSETS = true;

    static void unpack(PackedRows rows, int block, Panel& panel) {
        const Words scale_and_offset = word_column(rows);
        low_halves(scale_and_offset, panel.scales[block]);
        high_halves(scale_and_offset, panel.offsets[block]);
        unpack_nibbles(rows.from(4), panel.columns + block * COLUMNS);
    }
};

struct Q5_0 : BlocksOf32 {
    static constexpr int BLOCK_BYTES = 22, BIAS = 16;
    static constexpr bool HAS_OFFSETS = false;

    static void unpack(PackedRows rows, int block, Panel& panel) {
        low_halves(word_column(rows), panel.scales[block]);
        unpack_nibbles(rows.from(6), panel.columns + block * COLUMNS);
        add_fifth_bits(word_column(rows.from(2)), panel.columns + block * COLUMNS);
    }
};

struct Q5_1 : BlocksOf32 {
    static constexpr int BLOCK_BYTES = 24, BIAS = 0;
    static constexpr bool HAS_OFFSETS = true;

    static void unpack(PackedRows rows, int block, Panel& panel) {
        const Words scale_and_offset = word_column(rows);
        low_halves(scale_and_offset, panel.scales[block]);
        high_halves(scale_and_offset, panel.offsets[block]);
        unpack_nibbles(rows.from(8), panel.columns + block * COLUMNS);
        add_fifth_bits(word_column(rows.from(4)), panel.columns + block * COLUMNS);
    }
};

struct Q8_0 : BlocksOf32 {
    static constexpr int BLOCK_BYTES = 34, BIAS = simd::BYTE_BIAS;
    static constexpr bool HAS_OFFSETS = false, HAS_WHOLE_BYTES = true;

    static void unpack(PackedRows rows, int block, Panel& panel) {
        low_halves(word_column(rows), panel.scales[block]);
        uint8_t(*columns)[COLUMN] = panel.columns + block * COLUMNS;
        transpose_words(rows.from(2), columns);
        transpose_words(rows.from(18), columns + 4);
        if (BIAS)
            for (int byte = 0; byte < COLUMNS * COLUMN; byte++) columns[0][byte] ^= BIAS;
    }
};

}  // namespace products
