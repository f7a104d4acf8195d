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
inline void unpack_nibbles(PackedRows rows, Column* columns) {
    alignas(64) Column packed[4];
    read_words(rows, packed);
    for (int word = 0; word < 4; word++) split_nibbles(packed[word], columns[word], columns[4 + word]);
}

// Adds the fifth bits of 32 weights, which are one word of each row.
inline void add_fifth_bits(PackedRows rows, Column* columns) {
    constexpr uint32_t BIT_TO_EACH_BYTE = 0x00204081, LOWEST_BITS = 0x01010101;
    alignas(64) Column bits;
    read_word(rows, bits);
    for (int column = 0; column < 8; column++)
        for (int row = 0; row < ROWS; row++) {
            const uint32_t four = (bits[row] >> (4 * column)) & 15;
            columns[column][row] |= ((four * BIT_TO_EACH_BYTE) & LOWEST_BITS) << 4;
        }
}

inline void unpack_scale(PackedRows rows, float* scales) {
    alignas(64) Column words;
    read_word(rows, words);
    low_halves(words, scales);
}

inline void unpack_scale_and_offset(PackedRows rows, float* scales, float* offsets) {
    alignas(64) Column words;
    read_word(rows, words);
    low_halves(words, scales);
    high_halves(words, offsets);
}

struct Q4_0 : BlocksOf32 {
    static constexpr int BLOCK_BYTES = 18, BIAS = 8;
    static constexpr bool HAS_OFFSETS = false;

    static void unpack(PackedRows rows, int block, Panel& panel) {
        unpack_scale(rows, panel.scales[block]);
        unpack_nibbles(rows.from(2), panel.columns + block * COLUMNS);
    }
};

struct Q4_1 : BlocksOf32 {
    static constexpr int BLOCK_BYTES = 20, BIAS = 0;
    static constexpr bool HAS_OFFSETS = true;

    static void unpack(PackedRows rows, int block, Panel& panel) {
        unpack_scale_and_offset(rows, panel.scales[block], panel.offsets[block]);
        unpack_nibbles(rows.from(4), panel.columns + block * COLUMNS);
    }
};

struct Q5_0 : BlocksOf32 {
    static constexpr int BLOCK_BYTES = 22, BIAS = 16;
    static constexpr bool HAS_OFFSETS = false;

    static void unpack(PackedRows rows, int block, Panel& panel) {
        unpack_scale(rows, panel.scales[block]);
        unpack_nibbles(rows.from(6), panel.columns + block * COLUMNS);
        add_fifth_bits(rows.from(2), panel.columns + block * COLUMNS);
    }
};

struct Q5_1 : BlocksOf32 {
    static constexpr int BLOCK_BYTES = 24, BIAS = 0;
    static constexpr bool HAS_OFFSETS = true;

    static void unpack(PackedRows rows, int block, Panel& panel) {
        unpack_scale_and_offset(rows, panel.scales[block], panel.offsets[block]);
        unpack_nibbles(rows.from(8), panel.columns + block * COLUMNS);
        add_fifth_bits(rows.from(4), panel.columns + block * COLUMNS);
    }
};

struct Q8_0 : BlocksOf32 {
    static constexpr int BLOCK_BYTES = 34, BIAS = BYTE_BIAS;
    static constexpr bool HAS_OFFSETS = false, HAS_WHOLE_BYTES = true;

    static void unpack(PackedRows rows, int block, Panel& panel) {
        unpack_scale(rows, panel.scales[block]);
        Column* columns = panel.columns + block * COLUMNS;
        read_words(rows.from(2), columns);
        read_words(rows.from(18), columns + 4);
        add_bias(columns);
    }

private:
    static void add_bias(Column* columns) {
        constexpr uint32_t TO_EACH_BYTE = 0x01010101 * static_cast<uint32_t>(BIAS);
        for (int column = 0; column < COLUMNS; column++)
            for (int row = 0; row < ROWS; row++) columns[column][row] ^= TO_EACH_BYTE;
    }
};

}  // namespace products
