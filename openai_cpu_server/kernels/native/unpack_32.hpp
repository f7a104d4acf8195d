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

// Adds the fifth bits of 32 weights, which are one word of each row.
inline void add_fifth_bits(PackedRows rows, Column* columns) {
    constexpr int BIT_TO_EACH_BYTE = 0x00204081, LOWEST_BITS = 0x01010101;
    Column bits;
    read_word(rows, bits);
    for (int column = 0; column < 8; column++)
        for (int vector = 0; vector < VECTORS; vector++) {
            const ints four = (bits[vector] >> (4 * column)) & 15;
            columns[column][vector] |= ((four * BIT_TO_EACH_BYTE) & LOWEST_BITS) << 4;
        }
}

inline void unpack_scale(PackedRows rows, Numbers& scales) {
    Column words;
    read_word(rows, words);
    for (int vector = 0; vector < VECTORS; vector++) scales[vector] = low_halves(words[vector]);
}

inline void unpack_scale_and_offset(PackedRows rows, Numbers& scales, Numbers& offsets) {
    Column words;
    read_word(rows, words);
    for (int vector = 0; vector < VECTORS; vector++) {
        scales[vector] = low_halves(words[vector]);
        offsets[vector] = high_halves(words[vector]);
    }
}

struct Q4_0 : BlocksOf32 {
    static constexpr int BLOCK_BYTES = 18, BIAS = 8;
    static constexpr bool HAS_OFFSETS = false;

    static void unpack(PackedRows rows, int block, Panel& panel) {
        Column* columns = panel.columns + block * COLUMNS;
        unpack_scale(rows, panel.scales[block]);
        unpack_nibbles(rows.from(2), columns, columns + 4);
    }
};

struct Q4_1 : BlocksOf32 {
    static constexpr int BLOCK_BYTES = 20, BIAS = 0;
    static constexpr bool HAS_OFFSETS = true;

    static void unpack(PackedRows rows, int block, Panel& panel) {
        Column* columns = panel.columns + block * COLUMNS;
        unpack_scale_and_offset(rows, panel.scales[block], panel.offsets[block]);
        unpack_nibbles(rows.from(4), columns, columns + 4);
    }
};

struct Q5_0 : BlocksOf32 {
    static constexpr int BLOCK_BYTES = 22, BIAS = 16;
    static constexpr bool HAS_OFFSETS = false;

    static void unpack(PackedRows rows, int block, Panel& panel) {
        Column* columns = panel.columns + block * COLUMNS;
        unpack_scale(rows, panel.scales[block]);
        unpack_nibbles(rows.from(6), columns, columns + 4);
        add_fifth_bits(rows.from(2), columns);
    }
};

struct Q5_1 : BlocksOf32 {
    static constexpr int BLOCK_BYTES = 24, BIAS = 0;
    static constexpr bool HAS_OFFSETS = true;

    static void unpack(PackedRows rows, int block, Panel& panel) {
        Column* columns = panel.columns + block * COLUMNS;
        unpack_scale_and_offset(rows, panel.scales[block], panel.offsets[block]);
        unpack_nibbles(rows.from(8), columns, columns + 4);
        add_fifth_bits(rows.from(4), columns);
    }
};

struct Q8_0 : BlocksOf32 {
    static constexpr int BLOCK_BYTES = 34, BIAS = BYTE_BIAS;
    static constexpr bool HAS_OFFSETS = false, HAS_WHOLE_BYTES = true;

    static void unpack(PackedRows rows, int block, Panel& panel) {
        Column* columns = panel.columns + block * COLUMNS;
        unpack_scale(rows, panel.scales[block]);
        read_words(rows.from(2), columns);
        read_words(rows.from(18), columns + 4);
        add_bias(columns);
    }

private:
    static void add_bias(Column* columns) {
        for (int column = 0; column < COLUMNS; column++)
            for (ints& words : columns[column]) words ^= static_cast<int>(0x01010101U * BIAS);
    }
};

}  // namespace products
