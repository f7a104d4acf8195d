// Formats in blocks of 32 weights: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
// A format says how large its blocks are (BLOCK weights, BLOCK_BYTES bytes), for how many columns an activation keeps
// one scale (UNIT), what is subtracted from its bytes (BIAS), how many of their bits are used, and how panels are unpacked.
#pragma once

#include "panel.hpp"

namespace products {

struct BlocksOf32 {
    static constexpr int BLOCK = 32;
    static constexpr int UNIT = 32;
    static constexpr int COLUMNS = BLOCK / 4;
    static constexpr bool HAS_INTEGER_SCALES = false;
    using Panel = products::Panel<BLOCK>;
};

// The first 16 bytes of a block of each row, which begins with its scale.
struct BlockHead {
    Column words[4];

    explicit BlockHead(PackedRows rows) { read_words(rows, words); }

    void unpack_scale(Numbers& scales) const {
        for (int vector = 0; vector < VECTORS; vector++) scales[vector] = low_halves(words[0][vector]);
    }

    void unpack_offset(Numbers& offsets) const {
        for (int vector = 0; vector < VECTORS; vector++) offsets[vector] = high_halves(words[0][vector]);
    }
};

// Adds the fifth bits of 32 weights, which are one word of each row.
inline void add_fifth_bits(const Column& bits, Column* columns) {
    constexpr int ONE_BIT_TO_EACH_BYTE = 0x00204081 << 4, FIFTH_BITS = 0x10101010;
    for (int column = 0; column < 8; column++)
        for (int vector = 0; vector < VECTORS; vector++) {
            const ints four = (bits[vector] >> (4 * column)) & 15;
            columns[column][vector] |= (four * ONE_BIT_TO_EACH_BYTE) & FIFTH_BITS;
        }
}

struct Q4_0 : BlocksOf32 {
    static constexpr int BLOCK_BYTES = 18, BIAS = 8, WEIGHT_BITS = 4;
    static constexpr bool HAS_OFFSETS = false;

    static void unpack_head(PackedRows rows, int block, Panel& panel) {
        BlockHead{rows}.unpack_scale(panel.scales[block]);
    }

    static void unpack(PackedRows rows, int block, Panel& panel) {
        Column* columns = panel.columns + block * COLUMNS;
        BlockHead{rows}.unpack_scale(panel.scales[block]);
        unpack_nibbles(rows.from(2), columns, columns + 4);
    }
};

struct Q4_1 : BlocksOf32 {
    static constexpr int BLOCK_BYTES = 20, BIAS = 0, WEIGHT_BITS = 4;
    static constexpr bool HAS_OFFSETS = true;

    static void unpack_head(PackedRows rows, int block, Panel& panel) {
        const BlockHead head{rows};
        head.unpack_scale(panel.scales[block]);
        head.unpack_offset(panel.offsets[block]);
    }

    static void unpack(PackedRows rows, int block, Panel& panel) {
        Column* columns = panel.columns + block * COLUMNS;
        const BlockHead head{rows};
        head.unpack_scale(panel.scales[block]);
        head.unpack_offset(panel.offsets[block]);
        unpack_nibbles(rows.from(4), columns, columns + 4);
    }
};

struct Q5_0 : BlocksOf32 {
    static constexpr int BLOCK_BYTES = 22, BIAS = 16, WEIGHT_BITS = 5;
    static constexpr bool HAS_OFFSETS = false;

    static void unpack_head(PackedRows rows, int block, Panel& panel) {
        BlockHead{rows}.unpack_scale(panel.scales[block]);
    }

    static void unpack(PackedRows rows, int block, Panel& panel) {
        Column* columns = panel.columns + block * COLUMNS;
        const BlockHead head{rows};
        head.unpack_scale(panel.scales[block]);
        unpack_nibbles(rows.from(6), columns, columns + 4);
        Column bits;  // half of them in the first word, half in the second
        for (int vector = 0; vector < VECTORS; vector++)
            bits[vector] = ((head.words[0][vector] >> 16) & 0xffff) | (head.words[1][vector] << 16);
        add_fifth_bits(bits, columns);
    }
};

struct Q5_1 : BlocksOf32 {
    static constexpr int BLOCK_BYTES = 24, BIAS = 0, WEIGHT_BITS = 5;
    static constexpr bool HAS_OFFSETS = true;

    static void unpack_head(PackedRows rows, int block, Panel& panel) {
        const BlockHead head{rows};
        head.unpack_scale(panel.scales[block]);
        head.unpack_offset(panel.offsets[block]);
    }

    static void unpack(PackedRows rows, int block, Panel& panel) {
        Column* columns = panel.columns + block * COLUMNS;
        const BlockHead head{rows};
        head.unpack_scale(panel.scales[block]);
        head.unpack_offset(panel.offsets[block]);
        unpack_nibbles(rows.from(8), columns, columns + 4);
        add_fifth_bits(head.words[1], columns);
    }
};

struct Q8_0 : BlocksOf32 {
    static constexpr int BLOCK_BYTES = 34, BIAS = BYTE_BIAS, WEIGHT_BITS = 8;
    static constexpr bool HAS_OFFSETS = false;

    static void unpack_head(PackedRows rows, int block, Panel& panel) {
        BlockHead{rows}.unpack_scale(panel.scales[block]);
    }

    static void unpack(PackedRows rows, int block, Panel& panel) {
        Column* columns = panel.columns + block * COLUMNS;
        BlockHead{rows}.unpack_scale(panel.scales[block]);
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
