// Formats in superblocks of 256 weights: Q4_K, Q5_K, Q6_K. One superblock of each row is a panel.
#pragma once

#include "panel.hpp"

namespace products {

inline void read_32_bytes(PackedRows rows, Column* columns) {
    read_words(rows, columns);
    read_words(rows.from(16), columns + 4);
}

// 32 bytes hold 32 weights in their low halves and 32 others in their high halves.
inline void unpack_nibbles(PackedRows rows, Column* low, Column* high) {
    alignas(64) Column packed[8];
    read_32_bytes(rows, packed);
    for (int word = 0; word < 8; word++) split_nibbles(packed[word], low[word], high[word]);
}

// Puts the bits of each byte of `bits` that `mask` leaves after the shift in front of the low four of 32 weights.
inline void add_high_bits(const Column* bits, int shift, uint32_t mask, Column* columns) {
    for (int word = 0; word < 8; word++)
        for (int row = 0; row < ROWS; row++) columns[word][row] |= ((bits[word][row] >> shift) & mask) << 4;
}

// Sets the scales of four blocks: byte b of each row's word is that of block b, in units of the superblock's own.
inline void unpack_scales(const Column& bytes, const float* unit, float (*scales)[ROWS]) {
    for (int block = 0; block < 4; block++)
        for (int row = 0; row < ROWS; row++)
            scales[block][row] = unit[row] * static_cast<float>((bytes[row] >> (8 * block)) & 255);
}

// The head of a superblock of Q4_K and Q5_K: two units in half precision, then 8 scales and 8 offsets of 6 bits.
struct SuperblockHead {
    static constexpr int BYTES = 16;

    static void unpack(PackedRows rows, Panel<32>& panel) {
        alignas(64) Column head[4];
        alignas(64) float unit[ROWS];
        read_words(rows, head);
        low_halves(head[0], unit);
        unpack_six_bits(head[1], head[3], 0, unit, panel.scales);
        high_halves(head[0], unit);
        for (float& negative : unit) negative = -negative;
        unpack_six_bits(head[2], head[3], 4, unit, panel.offsets);
    }

private:
    // The first four have their six bits in `bytes`; the others their low four in `rest`, their high two in `bytes`.
    static void unpack_six_bits(const Column& bytes, const Column& rest, int shift, const float* unit,
                                float (*scales)[ROWS]) {
        alignas(64) Column first, second;
        for (int row = 0; row < ROWS; row++) {
            first[row] = bytes[row] & 0x3f3f3f3f;
            second[row] = ((rest[row] >> shift) & 0x0f0f0f0f) | ((bytes[row] >> 2) & 0x30303030);
        }
        unpack_scales(first, unit, scales);
        unpack_scales(second, unit, scales + 4);
    }
};

struct Superblocks {
    static constexpr int UNIT = 256;
    static constexpr bool HAS_WHOLE_BYTES = false;
};

struct Q4_K : Superblocks {
    static constexpr int BLOCK = 32, BLOCK_BYTES = 144, BIAS = 0;
    static constexpr bool HAS_OFFSETS = true;
    using Panel = products::Panel<BLOCK>;

    static void unpack(PackedRows rows, Panel& panel) {
        SuperblockHead::unpack(rows, panel);
        for (int part = 0; part < 4; part++) {
            Column* columns = panel.columns + 16 * part;
            unpack_nibbles(rows.from(SuperblockHead::BYTES + 32 * part), columns, columns + 8);
        }
    }
};

// As Q4_K, with a fifth bit for each weight in 32 bytes before the nibbles: bit b of each belongs to block b.
struct Q5_K : Superblocks {
    static constexpr int BLOCK = 32, BLOCK_BYTES = 176, BIAS = 0;
    static constexpr bool HAS_OFFSETS = true;
    using Panel = products::Panel<BLOCK>;

    static void unpack(PackedRows rows, Panel& panel) {
        SuperblockHead::unpack(rows, panel);
        alignas(64) Column bits[8];
        read_32_bytes(rows.from(SuperblockHead::BYTES), bits);
        for (int part = 0; part < 4; part++) {
            Column* columns = panel.columns + 16 * part;
            unpack_nibbles(rows.from(SuperblockHead::BYTES + 32 + 32 * part), columns, columns + 8);
            add_high_bits(bits, 2 * part, 0x01010101, columns);
            add_high_bits(bits, 2 * part + 1, 0x01010101, columns + 8);
        }
    }
};

// 128 bytes of nibbles, 64 of high pairs of bits, 16 signed scales, and their unit in half precision.
struct Q6_K : Superblocks {
    static constexpr int BLOCK = 16, BLOCK_BYTES = 210, BIAS = 32;
    static constexpr bool HAS_OFFSETS = false;
    using Panel = products::Panel<BLOCK>;

    static void unpack(PackedRows rows, Panel& panel) {
        unpack_half(rows, rows.from(128), panel.columns);
        unpack_half(rows.from(64), rows.from(160), panel.columns + 32);
        unpack_scales(rows.from(192), panel);
    }

private:
    static void unpack_half(PackedRows nibbles, PackedRows pairs, Column* columns) {
        alignas(64) Column bits[8];
        read_32_bytes(pairs, bits);
        unpack_nibbles(nibbles, columns, columns + 16);
        unpack_nibbles(nibbles.from(32), columns + 8, columns + 24);
        for (int part = 0; part < 4; part++) add_high_bits(bits, 2 * part, 0x03030303, columns + 8 * part);
    }

    static void unpack_scales(PackedRows rows, Panel& panel) {
        alignas(64) Column bytes[4], last;
        alignas(64) float unit[ROWS];
        read_words(rows, bytes);
        read_word(rows.from(14), last);  // ends where the block ends
        high_halves(last, unit);
        for (int block = 0; block < Panel::NUM_BLOCKS; block++)
            for (int row = 0; row < ROWS; row++) {
                const auto scale = static_cast<int8_t>(bytes[block / 4][row] >> (8 * (block % 4)));
                panel.scales[block][row] = unit[row] * static_cast<float>(scale);
            }
    }
};

}  // namespace products
