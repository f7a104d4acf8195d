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

// The head of a superblock of Q4_K and Q5_K: two units in half precision, then 8 scales and 8 offsets of 6 bits.
struct SuperblockHead {
    static constexpr int BYTES = 16;

    static void unpack(PackedRows rows, Panel<32>& panel) {
        Column head[4];
        read_words(rows, head);
        for (int vector = 0; vector < VECTORS; vector++) {
            const ints units = head[0][vector], rest = head[3][vector];
            unpack_six_bits(head[1][vector], rest, low_halves(units), vector, panel.scales);
            unpack_six_bits(head[2][vector], rest >> 4, -high_halves(units), vector, panel.offsets);
        }
    }

private:
    // The first four have their six bits in `bytes`; the others their low four in `rest`, their high two in `bytes`.
    static void unpack_six_bits(ints bytes, ints rest, floats unit, int vector, Numbers* numbers) {
        unpack_bytes(bytes & 0x3f3f3f3f, unit, vector, numbers);
        unpack_bytes((rest & 0x0f0f0f0f) | ((bytes >> 2) & 0x30303030), unit, vector, numbers + 4);
    }

    static void unpack_bytes(ints bytes, floats unit, int vector, Numbers* numbers) {
        for (int block = 0; block < 4; block++)
            numbers[block][vector] = unit * to_floats((bytes >> (8 * block)) & 255);
    }
};

struct Superblocks {
    static constexpr int UNIT = 256;
};

struct Q4_K : Superblocks {
    static constexpr int BLOCK = 32, BLOCK_BYTES = 144, BIAS = 0, WEIGHT_BITS = 4;
    static constexpr bool HAS_OFFSETS = true;
    using Panel = products::Panel<BLOCK>;

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
    using Panel = products::Panel<BLOCK>;

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

// 128 bytes of nibbles, 64 of high pairs of bits, 16 signed scales, and their unit in half precision.
struct Q6_K : Superblocks {
    static constexpr int BLOCK = 16, BLOCK_BYTES = 210, BIAS = 32, WEIGHT_BITS = 6;
    static constexpr bool HAS_OFFSETS = false;
    using Panel = products::Panel<BLOCK>;

    static void unpack_head(PackedRows rows, Panel& panel) {
        Column bytes[4], ending[4];
        read_words(rows.from(192), bytes);
        read_words(rows.from(194), ending);
        for (int block = 0; block < Panel::NUM_BLOCKS; block++)
            for (int vector = 0; vector < VECTORS; vector++) {
                const ints to_the_top = bytes[block / 4][vector] << (24 - 8 * (block % 4));
                panel.scales[block][vector] = high_halves(ending[3][vector]) * to_floats(to_the_top >> 24);
            }
    }

    static void unpack(PackedRows rows, Panel& panel) {
        unpack_half(rows, rows.from(128), panel.columns);
        unpack_half(rows.from(64), rows.from(160), panel.columns + 32);
        unpack_head(rows, panel);
    }

private:
    static void unpack_half(PackedRows nibbles, PackedRows pairs, Column* columns) {
        Column bits[8];
        read_32_bytes(pairs, bits);
        unpack_32_nibbles(nibbles, columns, columns + 16);
        unpack_32_nibbles(nibbles.from(32), columns + 8, columns + 24);
        for (int part = 0; part < 4; part++) add_high_bits(bits, 2 * part, 0x03030303, columns + 8 * part);
    }
};

}  // namespace products
