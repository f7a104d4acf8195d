// Formats in blocks of 32 weights: Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4, Q8_0.
// A format defines the size of its blocks (BLOCK weights, BLOCK_BYTES bytes), the number of columns with one scale of
// activations (UNIT), the number that is subtracted from its bytes (BIAS), their number of bits, and how to unpack
// panels.
#pragma once

#include "panel.hpp"

namespace products {

// HEAD bytes of a block come first: a scale, of one byte (E8M0) or two, or a scale and an offset.
template <int HEAD>
struct BlocksOf32 {
    static constexpr int BLOCK = 32;
    static constexpr int UNIT = 32;
    static constexpr int COLUMNS = BLOCK / 4;
    static constexpr bool HAS_OFFSETS = HEAD == 4, HAS_INTEGER_SCALES = false;
    using Panel = products::Panel<BLOCK>;

    static ALWAYS_INLINE void unpack_head(PackedRows rows, int block, Panel& panel) {
        Column words[4];
        unpack_head(rows, block, panel, words);
    }

protected:
    // Leaves the first 16 bytes of each row's block in `words`.
    static ALWAYS_INLINE void unpack_head(PackedRows rows, int block, Panel& panel, Column* words) {
        read_words(rows, words);
        for (int vector = 0; vector < VECTORS; vector++) {
            const ints head = words[0][vector];
            panel.scales[block][vector] = HEAD == 1 ? half_of_power(head & 255) : low_halves(head);
            if constexpr (HAS_OFFSETS) panel.offsets[block][vector] = high_halves(head);
        }
    }

private:
    // 2^(e - 128), which is half of what an E8M0 means: values of MXFP4 are stored doubled.
    static floats half_of_power(ints e) {
        const ints bits = e < 2 ? splat(0x00200000) << (e & 1) : (e - 1) << 23;
        floats powers;
        std::memcpy(&powers, &bits, sizeof powers);
        return powers;
    }
};

// Adds the fifth bits of 32 weights, which are one word of each row.
ALWAYS_INLINE void add_fifth_bits(const Column& bits, Column* columns) {
    constexpr int ONE_BIT_TO_EACH_BYTE = 0x00204081 << 4, FIFTH_BITS = 0x10101010;
    for (int column = 0; column < 8; column++)
        for (int vector = 0; vector < VECTORS; vector++) {
            const ints four = (bits[vector] >> (4 * column)) & 15;
            columns[column][vector] |= (four * ONE_BIT_TO_EACH_BYTE) & FIFTH_BITS;
        }
}

// Behind the head, the fifth bit of each weight if it has five, then 16 bytes: 16 weights in the low halves, 16 in the
// high.
template <int HEAD, int BITS, int CENTRE>
struct Nibbles : BlocksOf32<HEAD> {
    using Blocks = BlocksOf32<HEAD>;
    using typename Blocks::Panel;
    static constexpr int NIBBLES = HEAD + (BITS == 5 ? 4 : 0), BLOCK_BYTES = NIBBLES + 16;
    static constexpr int BIAS = CENTRE, WEIGHT_BITS = BITS;

    static ALWAYS_INLINE void unpack(PackedRows rows, int block, Panel& panel) {
        Column words[4], *columns = panel.columns + block * Blocks::COLUMNS;
        Blocks::unpack_head(rows, block, panel, words);
        unpack_nibbles(rows.from(NIBBLES), columns, columns + 4);
        if constexpr (BITS == 5) {
            Column bits;
            for (int vector = 0; vector < VECTORS; vector++)
                bits[vector] = HEAD == 4 ? words[1][vector]
                                         : ((words[0][vector] >> 16) & 0xffff) | (words[1][vector] << 16);
            add_fifth_bits(bits, columns);
        }
    }
};

struct Q4_0 : Nibbles<2, 4, 8> {};
struct Q4_1 : Nibbles<4, 4, 0> {};
struct Q5_0 : Nibbles<2, 5, 16> {};
struct Q5_1 : Nibbles<4, 5, 0> {};

// 16 bytes of nibbles which are places in a table of weights, to which the bias was added.
template <int HEAD, int BITS, int CENTRE, const ByteTable& TABLE>
struct NibblesLookedUp : BlocksOf32<HEAD> {
    using Blocks = BlocksOf32<HEAD>;
    using typename Blocks::Panel;
    static constexpr int NIBBLES = HEAD, BLOCK_BYTES = NIBBLES + 16, BIAS = CENTRE, WEIGHT_BITS = BITS;

    static ALWAYS_INLINE void unpack(PackedRows rows, int block, Panel& panel) {
        Column words[4], *columns = panel.columns + block * Blocks::COLUMNS;
        Blocks::unpack_head(rows, block, panel, words);
        unpack_nibbles(rows.from(NIBBLES), columns, columns + 4);
        look_up_columns(TABLE, columns, Blocks::COLUMNS);
    }
};

// Twice the values of E2M1, and 12.
inline constexpr ByteTable FP4_VALUES{{12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0}};

struct MXFP4 : NibblesLookedUp<1, 5, 12, FP4_VALUES> {};
struct IQ4_NL : NibblesLookedUp<2, 8, BYTE_BIAS, IQ4_VALUES> {};

struct Q8_0 : BlocksOf32<2> {
    static constexpr int BLOCK_BYTES = 34, BIAS = BYTE_BIAS, WEIGHT_BITS = 8;

    static ALWAYS_INLINE void unpack(PackedRows rows, int block, Panel& panel) {
        Column* columns = panel.columns + block * COLUMNS;
        unpack_head(rows, block, panel);
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
