// Formats in superblocks of 256 weights: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS. One superblock of each row is a panel.
#pragma once

#include "panel.hpp"

namespace products {

ALWAYS_INLINE void read_32_bytes(PackedRows rows, Column* columns) {
    read_words(rows, columns);
    read_words(rows.from(16), columns + 4);
}

// 32 bytes of each row hold 32 weights in their low halves and 32 others in their high halves.
ALWAYS_INLINE void unpack_32_nibbles(PackedRows rows, Column* low, Column* high) {
    unpack_nibbles(rows, low, high);
    unpack_nibbles(rows.from(16), low + 4, high + 4);
}

// Puts the bits of each byte of `bits` that `mask` leaves after the shift into 32 weights, from the bit `place` on.
ALWAYS_INLINE void add_bits(const Column* bits, int shift, int mask, int place, Column* columns) {
    for (int word = 0; word < 8; word++)
        for (int vector = 0; vector < VECTORS; vector++)
            columns[word][vector] |= ((bits[word][vector] >> shift) & mask) << place;
}

// 64 bytes of each row hold 256 weights of two bits: each 32 of them four times 32, from the low bits on.
ALWAYS_INLINE void unpack_pairs_of_bits(PackedRows rows, Column* columns) {
    for (int half = 0; half < 2; half++) {
        Column packed[8];
        read_32_bytes(rows.from(32 * half), packed);
        for (int part = 0; part < 4; part++, columns += 8)
            for (int word = 0; word < 8; word++)
                for (int vector = 0; vector < VECTORS; vector++)
                    columns[word][vector] = (packed[word][vector] >> (2 * part)) & 0x03030303;
    }
}

inline ints byte_of(ints words, int number) { return (words >> (8 * number)) & 255; }

// Weights are unit * scale * byte + offset_unit * offset. The units are in half precision: at UNIT_AT, then the offsets'.
template <int BLOCK_, int BYTES, int BITS, int UNIT_AT>
struct Superblocks {
    static constexpr int UNIT = 256, BLOCK = BLOCK_, BLOCK_BYTES = BYTES, BIAS = 0, WEIGHT_BITS = BITS;
    static constexpr int TWICE_CENTRE = 0;
    static constexpr bool HAS_INTEGER_SCALES = true, HAS_OFFSETS = true, HAS_SIGNS_APART = false;
    using Panel = IntegerPanel<BLOCK>;

    static ALWAYS_INLINE void unpack_units(PackedRows rows, Panel& panel) {
        for (int vector = 0; vector < VECTORS; vector++) {
            const uint8_t* units = rows.first + vector * LANES * rows.stride + UNIT_AT;
            panel.unit[vector] = load_halves(units, rows.stride);
            panel.offset_unit[vector] = -load_halves(units + 2, rows.stride);
        }
    }

protected:
    // Of a vector of rows, for each block.
    static ALWAYS_INLINE void put_scales(const ints* scales, int vector, Panel& panel) {
        for (int block = 0; block < Panel::NUM_BLOCKS; block++)
            panel.scales[block][vector] = factor_of(scales[block]);
    }

    static ALWAYS_INLINE void put_offsets(const ints* offsets, int vector, Panel& panel) {
        for (int block = 0; block < Panel::NUM_BLOCKS; block += 2)
            panel.offsets[block / 2][vector] = pair_of(offsets[block], offsets[block + 1]);
    }
};

// Weights are 2^POWER * unit * scale * (byte - TWICE_CENTRE / 2): a bias, or, where sums of pairs leave no place for it
// or it is not whole, an offset of so many times the scale, which is subtracted from integers (`centred`).
template <int BLOCK_, int BYTES, int BITS, int UNIT_AT, int TWICE_CENTRE_, int POWER = 0>
struct CentredSuperblocks : Superblocks<BLOCK_, BYTES, BITS, UNIT_AT> {
    using Base = Superblocks<BLOCK_, BYTES, BITS, UNIT_AT>;
    using typename Base::Panel;
    static constexpr bool HAS_OFFSETS = TWICE_CENTRE_ != 0 && (HAS_PAIRS || TWICE_CENTRE_ % 2 != 0);
    static constexpr int BIAS = HAS_OFFSETS ? 0 : TWICE_CENTRE_ / 2, TWICE_CENTRE = HAS_OFFSETS ? TWICE_CENTRE_ : 0;

    static ALWAYS_INLINE void unpack_units(PackedRows rows, Panel& panel) {
        constexpr int HALVED = POWER - HAS_OFFSETS;
        constexpr float WORTH = HALVED < 0 ? 1.0F / (1 << -HALVED) : 1 << HALVED;
        for (int vector = 0; vector < VECTORS; vector++)
            panel.unit[vector] =
                WORTH * load_halves(rows.first + vector * LANES * rows.stride + UNIT_AT, rows.stride);
    }

protected:
    static ALWAYS_INLINE void put_scales(const ints* scales, int vector, Panel& panel) {
        Base::put_scales(scales, vector, panel);
        if constexpr (HAS_OFFSETS) Base::put_offsets(scales, vector, panel);
    }
};

// Eight numbers of six bits of each row. The first four have theirs in `bytes`; the others their low four in `rest`, their
// high two in `bytes`.
ALWAYS_INLINE void split_six_bits(ints bytes, ints rest, ints* numbers) {
    const ints first = bytes & 0x3f3f3f3f, second = (rest & 0x0f0f0f0f) | ((bytes >> 2) & 0x30303030);
    for (int block = 0; block < 8; block++) numbers[block] = byte_of(block < 4 ? first : second, block % 4);
}

// Two units in half precision, 8 scales and 8 offsets of 6 bits, for a fifth bit of each weight 32 bytes (bit b of each
// belongs to block b), and 128 bytes of nibbles.
template <int BITS>
struct SixBitSuperblocks : Superblocks<32, BITS == 5 ? 176 : 144, BITS, 0> {
    using Base = Superblocks<32, BITS == 5 ? 176 : 144, BITS, 0>;
    using typename Base::Panel;
    static constexpr int FIFTH_BITS = 16, NIBBLES = BITS == 5 ? 48 : 16;

    static void unpack_head(PackedRows rows, Panel& panel) {
        Column head[4];
        Base::unpack_units(rows, panel);
        read_words(rows, head);
        for (int vector = 0; vector < VECTORS; vector++) {
            const ints rest = head[3][vector];
            ints scales[8], offsets[8];
            split_six_bits(head[1][vector], rest, scales);
            split_six_bits(head[2][vector], rest >> 4, offsets);
            Base::put_scales(scales, vector, panel);
            Base::put_offsets(offsets, vector, panel);
        }
    }

    static void unpack(PackedRows rows, Panel& panel) {
        unpack_head(rows, panel);
        Column bits[8];
        if constexpr (BITS == 5) read_32_bytes(rows.from(FIFTH_BITS), bits);
        for (int part = 0; part < 4; part++) {
            Column* columns = panel.columns + 16 * part;
            unpack_32_nibbles(rows.from(NIBBLES + 32 * part), columns, columns + 8);
            if constexpr (BITS == 5) {
                add_bits(bits, 2 * part, 0x01010101, 4, columns);
                add_bits(bits, 2 * part + 1, 0x01010101, 4, columns + 8);
            }
        }
    }
};

struct Q4_K : SixBitSuperblocks<4> {};
struct Q5_K : SixBitSuperblocks<5> {};

// 16 bytes of a scale and an offset of four bits, 64 of pairs of bits, two units in half precision.
struct Q2_K : Superblocks<16, 84, 2, 80> {
    static constexpr int PAIRS = 16;

    static void unpack_head(PackedRows rows, Panel& panel) {
        Column bytes[4];
        unpack_units(rows, panel);
        read_words(rows, bytes);
        for (int vector = 0; vector < VECTORS; vector++) {
            ints scales[16], offsets[16];
            for (int block = 0; block < 16; block++) {
                const ints both = byte_of(bytes[block / 4][vector], block % 4);
                scales[block] = both & 15;
                offsets[block] = both >> 4;
            }
            put_scales(scales, vector, panel);
            put_offsets(offsets, vector, panel);
        }
    }

    static void unpack(PackedRows rows, Panel& panel) {
        unpack_head(rows, panel);
        unpack_pairs_of_bits(rows.from(PAIRS), panel.columns);
    }
};

// 32 bytes of third bits (bit b of each belongs to the columns from 32 * b on), 64 of pairs of bits, 16 scales of six
// bits less 32, and their unit in half precision. Less 4, they are the weights.
struct Q3_K : CentredSuperblocks<16, 110, 3, 108, 8> {
    static constexpr int PAIRS = 32;

    static void unpack_head(PackedRows rows, Panel& panel) {
        Column words[4];
        unpack_units(rows, panel);
        read_words(rows.from(92), words);
        for (int vector = 0; vector < VECTORS; vector++) {
            ints scales[16];
            for (int four = 0; four < 4; four++) {
                const ints low = (words[1 + four % 2][vector] >> (4 * (four / 2))) & 0x0f0f0f0f;
                const ints bytes = low | ((words[3][vector] >> (2 * four)) & 0x03030303) << 4;
                for (int i = 0; i < 4; i++) scales[4 * four + i] = byte_of(bytes, i) - 32;
            }
            put_scales(scales, vector, panel);
        }
    }

    static void unpack(PackedRows rows, Panel& panel) {
        unpack_head(rows, panel);
        unpack_pairs_of_bits(rows.from(PAIRS), panel.columns);
        Column bits[8];
        read_32_bytes(rows, bits);
        for (int part = 0; part < 8; part++) add_bits(bits, part, 0x01010101, 2, panel.columns + 8 * part);
    }
};

// 128 bytes of nibbles, 64 of high pairs of bits, 16 signed scales, and their unit in half precision. Less 32, they
// are the weights.
struct Q6_K : CentredSuperblocks<16, 210, 6, 208, 64> {
    static constexpr int PAIRS = 128;

    static void unpack_head(PackedRows rows, Panel& panel) {
        Column bytes[4];
        unpack_units(rows, panel);
        read_words(rows.from(192), bytes);
        for (int vector = 0; vector < VECTORS; vector++) {
            ints scales[16];
            for (int block = 0; block < 16; block++)
                scales[block] = (bytes[block / 4][vector] << (24 - 8 * (block % 4))) >> 24;
            put_scales(scales, vector, panel);
        }
    }

    static void unpack(PackedRows rows, Panel& panel) {
        unpack_half(rows, rows.from(PAIRS), panel.columns);
        unpack_half(rows.from(64), rows.from(PAIRS + 32), panel.columns + 32);
        unpack_head(rows, panel);
    }

private:
    static ALWAYS_INLINE void unpack_half(PackedRows nibbles, PackedRows pairs, Column* columns) {
        Column bits[8];
        read_32_bytes(pairs, bits);
        unpack_32_nibbles(nibbles, columns, columns + 16);
        unpack_32_nibbles(nibbles.from(32), columns + 8, columns + 24);
        for (int part = 0; part < 4; part++) add_bits(bits, 2 * part, 0x03030303, 4, columns + 8 * part);
    }
};

// A unit in half precision, 8 scales of six bits less 32 (high pairs of bits, then low nibbles), and 128 bytes of
// nibbles, which are places in the table of weights.
struct IQ4_XS : CentredSuperblocks<32, 136, 8, 0, 2 * BYTE_BIAS> {
    static constexpr int NIBBLES = 8;

    static void unpack_head(PackedRows rows, Panel& panel) {
        Column head[4];
        unpack_units(rows, panel);
        read_words(rows, head);
        for (int vector = 0; vector < VECTORS; vector++) {
            ints scales[8];
            for (int block = 0; block < 8; block++) {
                const ints high = (head[0][vector] >> (16 + 2 * block)) & 3, low = head[1][vector] >> (4 * block);
                scales[block] = ((low & 15) | high << 4) - 32;
            }
            put_scales(scales, vector, panel);
        }
    }

    static void unpack(PackedRows rows, Panel& panel) {
        unpack_head(rows, panel);
        for (int block = 0; block < 8; block++) {
            Column* columns = panel.columns + 8 * block;
            unpack_nibbles(rows.from(NIBBLES + 16 * block), columns, columns + 4);
            look_up_columns(IQ4_VALUES, columns, 8);
        }
    }
};

}  // namespace products
