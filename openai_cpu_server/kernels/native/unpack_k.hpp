// Formats in superblocks of 256 weights: Q4_K, Q5_K, Q6_K. One superblock of each row is a panel.
#pragma once

#include "panel.hpp"

namespace products {

// The low nibbles of 32 bytes are 32 weights, the high ones the next `distance` columns later.
inline void unpack_nibbles(PackedRows rows, uint8_t (*low)[COLUMN], uint8_t (*high)[COLUMN]) {
    alignas(64) uint8_t packed[8][COLUMN];
    transpose_words(rows, packed);
    transpose_words(rows.from(16), packed + 4);
    for (int word = 0; word < 8; word++) split_nibbles(packed[word], low[word], high[word]);
}

// Adds bits `shift` and on (as many as `mask` has) of `bits` above the low four.
inline void add_high_bits(const uint8_t (*bits)[COLUMN], int shift, int mask, uint8_t (*columns)[COLUMN]) {
    for (int word = 0; word < 8; word++)
        for (int byte = 0; byte < COLUMN; byte++)
            columns[word][byte] |= ((bits[word][byte] >> shift) & mask) << 4;
}

// Sets the scales of four blocks: byte b of each row's word is that of block b, in units of the superblock's own.
inline void unpack_scales(const Words& bytes, const float* unit, float (*scales)[ROWS]) {
    for (int block = 0; block < 4; block++)
        for (int row = 0; row < ROWS; row++)
            scales[block][row] = unit[row] * static_cast<float>((bytes.of_row[row] >> (8 * block)) & 255);
}

// The head of a superblock of Q4_K and Q5_K: two units in half precision, then 8 scales and 8 offsets of 6 bits.
struct SuperblockHead {
    static constexpr int BLOCK = 32, BYTES = 16;
    using Panel = products::Panel<BLOCK>;

    static void unpack(PackedRows rows, Panel& panel) {
        alignas(64) Words head[4];
        transpose_words(rows, reinterpret_cast<uint8_t(*)[COLUMN]>(head));
        alignas(64) float unit[ROWS];
        low_halves(head[0], unit);
        unpack_six_bits(head[1], head[3], 0, unit, panel.scales);
        high_halves(head[0], unit);
        for (int row = 0; row < ROWS; row++) unit[row] = -unit[row];
        unpack_six_bits(head[2], head[3], 4, unit, panel.offsets);
    }

private:
    // The first four have their six bits in `bytes`; the others their low four in `rest`, their high two in `bytes`.
    static void unpack_six_bits(const Words& bytes, const Words& rest, int shift, const float* unit,
                                float (*scales)[ROWS]) {
        Words first, second;
        for (int row = 0; row < ROWS; row++) {
            first.of_row[row] = bytes.of_row[row] & 0x3f3f3f3f;
            const uint32_t high = (bytes.of_row[row] >> 2) & 0x30303030;
            second.of_row[row] = ((rest.of_row[row] >> shift) & 0x0f0f0f0f) | high;
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
            uint8_t(*columns)[COLUMN] = panel.columns + 16 * part;
            unpack_nibbles(rows.from(SuperblockHead::BYTES + 32 * part), columns, columns + 8);
        }
    }
};

struct Q5_K : Superblocks {
    static constexpr int BLOCK = 32, BLOCK_BYTES = 176, BIAS = 0;
    static constexpr bool HAS_OFFSETS = true;
    using Panel = products::Panel<BLOCK>;

    static void unpack(PackedRows rows, Panel& panel) {
        SuperblockHead::unpack(rows, panel);
        alignas(64) uint8_t bits[8][COLUMN];
        transpose_words(rows.from(SuperblockHead::BYTES), bits);
        transpose_words(rows.from(SuperblockHead::BYTES + 16), bits + 4);
        for (int part = 0; part < 4; part++) {
            uint8_t(*columns)[COLUMN] = panel.columns + 16 * part;
            unpack_nibbles(rows.from(SuperblockHead::BYTES + 32 + 32 * part), columns, columns + 8);
            add_high_bits(bits, 2 * part, 1, columns);
            add_high_bits(bits, 2 * part + 1, 1, columns + 8);
        }
    }
};

// 128 bytes of low nibbles, 64 of high pairs of bits, 16 signed scales, their unit in half precision.
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
    static void unpack_half(PackedRows nibbles, PackedRows pairs, uint8_t (*columns)[COLUMN]) {
        alignas(64) uint8_t bits[8][COLUMN];
        transpose_words(pairs, bits);
        transpose_words(pairs.from(16), bits + 4);
        unpack_nibbles(nibbles, columns, columns + 16);
        unpack_nibbles(nibbles.from(32), columns + 8, columns + 24);
        for (int part = 0; part < 4; part++) add_high_bits(bits, 2 * part, 3, columns + 8 * part);
    }

    static void unpack_scales(PackedRows rows, Panel& panel) {
        alignas(64) Words bytes[4];
        transpose_words(rows, reinterpret_cast<uint8_t(*)[COLUMN]>(bytes));
        alignas(64) float unit[ROWS];
        high_halves(word_column(rows.from(14)), unit);  // a word from here ends with the row, as the block does
        for (int block = 0; block < Panel::NUM_BLOCKS; block++)
            for (int row = 0; row < ROWS; row++) {
                const auto scale = static_cast<int8_t>(bytes[block / 4].of_row[row] >> (8 * (block % 4)));
                panel.scales[block][row] = unit[row] * static_cast<float>(scale);
            }
    }
};

}  // namespace products
