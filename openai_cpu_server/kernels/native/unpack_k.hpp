// Formats in superblocks of 256 weights: Q4_K, Q5_K, Q6_K. One superblock of each row is a panel.
#pragma once

#include "panel.hpp"

namespace products {

inline void read_32_bytes(PackedRows rows, Column* columns) {
    read_words(rows, columns);
    read_words(rows.from(16), columns + 4);
}

// 32 bytes of each row hold 32 weights in their low halves and 32 others in their high halves.
inline void unpack_32_nibbles(PackedRows rows, Column* low, Column* high) {
    unpack_nibbles(rows, low, high);
    unpack_nibbles(rows.from(16), low + 4, high + 4);
}

// Puts the bits of each byte of `bits` that `mask` leaves after the shift in front of the low four of 32 weights.
inline void add_high_bits(const Column* bits, int shift, int mask, Column* columns) {
    for (int word = 0; word < 8; word++)
        for (int vector = 0; vector < VECTORS; vector++)
            columns[word][vector] |= ((bits[word][vector] >> shift) & mask) << 4;
}

struct Superblocks {
    static constexpr int UNIT = 256;
    static constexpr bool HAS_INTEGER_SCALES = true;
};

// The head of a superblock of Q4_K and Q5_K: two units in half precision, then 8 scales and 8 offsets of 6 bits.
struct SuperblockHead {
    static constexpr int BYTES = 16;

    template <class Panel>
    static void unpack(PackedRows rows, Panel& panel) {
        Column head[4];
        read_words(rows, head);
        for (int vector = 0; vector < VECTORS; vector++) {
            const ints units = head[0][vector], rest = head[3][vector];
            const SixBits scales{head[1][vector], rest}, offsets{head[2][vector], rest >> 4};
            put(scales, offsets, low_halves(units), -high_halves(units), vector, panel);
        }
    }

private:
    // Eight numbers of each row. The first four have their six bits in `bytes`; the others their low four in `rest`,
    // their high two in `bytes`.
    struct SixBits {
        ints first, second;

        SixBits(ints bytes, ints rest)
            : first{bytes & 0x3f3f3f3f}, second{(rest & 0x0f0f0f0f) | ((bytes >> 2) & 0x30303030)} {}
        ints operator[](int block) const { return ((block < 4 ? first : second) >> (8 * (block % 4))) & 255; }
    };

    static void put(const SixBits& scales, const SixBits& offsets, floats unit, floats offset_unit, int vector,
                    IntegerPanel<32>& panel) {
        panel.unit[vector] = unit;
        panel.offset_unit[vector] = offset_unit;
        for (int block = 0; block < 8; block++) panel.scales[block][vector] = factor_of(scales[block]);
        for (int block = 0; block < 8; block += 2)
            panel.offsets[block / 2][vector] = pair_of(offsets[block], offsets[block + 1]);
    }
};

struct Q4_K : Superblocks {
    static constexpr int BLOCK = 32, BLOCK_BYTES = 144, BIAS = 0, WEIGHT_BITS = 4;
    static constexpr bool HAS_OFFSETS = true;
    using Panel = IntegerPanel<BLOCK>;

    static void unpack_head(PackedRows rows, Panel& panel) { SuperblockHead::unpack(rows, panel); }

    static void unpack(PackedRows rows, Panel& panel) {
        unpack_head(rows, panel);
        for (int part = 0; part < 4; part++) {
            Column* columns = panel.columns + 16 * part;
            unpack_32_nibbles(rows.from(SuperblockHead::BYTES + 32 * part), columns, columns + 8);
        }
    }
};

// As Q4_K, with a fifth bit for each weight in 32 bytes before the nibbles: bit b of each belongs to block b.
struct Q5_K : Superblocks {
    static constexpr int BLOCK = 32, BLOCK_BYTES = 176, BIAS = 0, WEIGHT_BITS = 5;
    static constexpr bool HAS_OFFSETS = true;
    using Panel = IntegerPanel<BLOCK>;

    static void unpack_head(PackedRows rows, Panel& panel) { SuperblockHead::unpack(rows, panel); }

    static void unpack(PackedRows rows, Panel& panel) {
        unpack_head(rows, panel);
        Column bits[8];
        read_32_bytes(rows.from(SuperblockHead::BYTES), bits);
        for (int part = 0; part < 4; part++) {
            Column* columns = panel.columns + 16 * part;
            unpack_32_nibbles(rows.from(SuperblockHead::BYTES + 32 + 32 * part), columns, columns + 8);
            add_high_bits(bits, 2 * part, 0x01010101, columns);
            add_high_bits(bits, 2 * part + 1, 0x01010101, columns + 8);
        }
    }
};

// 128 bytes of nibbles, 64 of high pairs of bits, 16 signed scales, and their unit in half precision. Less 32, they
// are the weights: a bias, or, where sums of pairs leave no place for it, an offset of -32 times the scale.
struct Q6_K : Superblocks {
    static constexpr int BLOCK = 16, BLOCK_BYTES = 210, BIAS = HAS_PAIRS ? 0 : 32, WEIGHT_BITS = 6;
    static constexpr bool HAS_OFFSETS = HAS_PAIRS;
    using Panel = IntegerPanel<BLOCK>;

    static void unpack_head(PackedRows rows, Panel& panel) {
        Column bytes[4], ending;
        read_words(rows.from(192), bytes);
        read_fourth_word(rows.from(194), ending);
        for (int vector = 0; vector < VECTORS; vector++) {
            ints scales[Panel::NUM_BLOCKS];
            for (int block = 0; block < Panel::NUM_BLOCKS; block++)
                scales[block] = (bytes[block / 4][vector] << (24 - 8 * (block % 4))) >> 24;
            put(scales, high_halves(ending[vector]), vector, panel);
        }
    }

    static void unpack(PackedRows rows, Panel& panel) {
        unpack_half(rows, rows.from(128), panel.columns);
        unpack_half(rows.from(64), rows.from(160), panel.columns + 32);
        unpack_head(rows, panel);
    }

private:
    static void put(const ints* scales, floats unit, int vector, Panel& panel) {
        panel.unit[vector] = unit;
        for (int block = 0; block < Panel::NUM_BLOCKS; block++)
            panel.scales[block][vector] = factor_of(scales[block]);
        if (!HAS_OFFSETS) return;
        panel.offset_unit[vector] = unit * -32.0F;
        for (int block = 0; block < Panel::NUM_BLOCKS; block += 2)
            panel.offsets[block / 2][vector] = pair_of(scales[block], scales[block + 1]);
    }

    static void unpack_half(PackedRows nibbles, PackedRows pairs, Column* columns) {
        Column bits[8];
        read_32_bytes(pairs, bits);
        unpack_32_nibbles(nibbles, columns, columns + 16);
        unpack_32_nibbles(nibbles.from(32), columns + 8, columns + 24);
        for (int part = 0; part < 4; part++) add_high_bits(bits, 2 * part, 0x03030303, columns + 8 * part);
    }
};

}  // namespace products
