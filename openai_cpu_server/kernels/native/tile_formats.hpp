// Weights as bf16 for tiles: PANEL columns of one row at a time, each 32 of them (a step) to a row of another tile.
//
// A weight is computed in half precision, times 2^7, and becomes bf16 by a shift, which leaves a factor of 2^-112;
// activations are packed times 2^POWER, the inverse of both. So the largest weight is 511, the smallest 2^-21: blocks
// with larger scales go through ggml's own function (`fits`). Scales and offsets are in the weights, so sums stay in
// tiles over the whole depth.
//
// Columns lie in the order in which bits come out of words without being moved: column() names the column at a place,
// and activations are packed in the same order. Unpacking takes 7 to 13 cycles for 64 weights (measured on a Sapphire
// Rapids for Q8_0, Q4_0, IQ4_NL, IQ4_XS, MXFP4).
#pragma once

#include <algorithm>

#include "amx.hpp"
#include "ggml_api.hpp"
#include "unpack_grid.hpp"
#include "words.hpp"

namespace tiles {

constexpr int PANEL = 256, STEP = 32, STEPS = PANEL / STEP;

ALWAYS_INLINE void put(uint8_t* to, int step, words x) { std::memcpy(to + step * amx::TILE_BYTES, &x, sizeof x); }

template <class Order>
__attribute__((noinline, cold)) void unpack_by_ggml(ggml_type type, int power, const uint8_t* block, uint8_t* to) {
    float weights[PANEL], step[STEP];
    ggml().type_traits(type)->to_float(block, weights, PANEL);
    for (int s = 0; s < STEPS; s++) {
        for (int i = 0; i < STEP; i++) step[i] = weights[Order::column(STEP * s + i)];
        amx::store_bf16(reinterpret_cast<uint16_t*>(to + s * amx::TILE_BYTES), step, std::ldexp(1.0F, -power));
    }
}

// ---- orders of columns

struct AsStored {
    static constexpr int column(int place) { return place; }
};
// Pairs of bits of 64 bytes as words: the lowest of even columns, of odd ones, the next lowest.
struct PairsOf64 {
    static constexpr int column(int place) {
        const int step = place / STEP, lane = place % STEP;
        return 128 * (lane / 16) + STEP * (step / 2) + 2 * (lane % 16) + step % 2;
    }
};
// Two blocks of 32, each with its first 16 columns in low nibbles: the low ones of both, then the high ones.
struct TwoBlocks {
    static constexpr int column(int place) {
        const int step = place / STEP, lane = place % STEP;
        return STEP * (step / 2 * 2 + lane / 16) + 16 * (step % 2) + lane % 16;
    }
};

// ---- common parts of formats

// The order of columns, the bytes of PANEL weights, how many weights lie together, and the power of two of activations.
template <class ORDER, ggml_type NUMBER, int PANEL_BYTES, int WEIGHTS, int EXPONENT = 105>
struct Type {
    using Order = ORDER;
    static constexpr ggml_type TYPE = NUMBER;
    static constexpr int BYTES = PANEL_BYTES, BLOCK = WEIGHTS, POWER = EXPONENT;
};

inline words in_halves(int first, int second) { return words_of([&](int i) { return i < 16 ? first : second; }); }
inline const words SECOND_TABLE = in_halves(0, 16);
struct Places {
    words of[8];
};

ALWAYS_INLINE words16 splat16(uint16_t x) { return words16{} + x; }
// Integers times a unit (a half) times 2^7.
ALWAYS_INLINE words16 scaled(words16 integers, words16 units) {
    return multiply(multiply(halves_of(integers), units), splat16(0x5800));
}
ALWAYS_INLINE uint16_t magnitude(const uint8_t* half) { return read<uint16_t>(half) & 0x7fff; }

// ---- superblocks of 256

// 16 bytes of a scale and an offset of four bits, 64 of pairs of bits, d and dmin. Eight lanes share a scale: a table
// has the four weights of four scales, of two steps' pairs of bits.
struct Q2_K : Type<PairsOf64, GGML_TYPE_Q2_K, 84, 256> {
    static words places(int first) {
        return words_of([&](int i) { return first + 2 * (i / 16) + 8 * (i % 16 / 8) + i % 8 / 4; });
    }
    static inline const Places PLACES = {{places(0), places(4)}};
    static inline const words VALUES = words_of([](int i) { return half_of(i % 4); });
    static inline const Places TABLES = {{words_of([](int i) { return i / 8 * 4; }), words_of([](int i) { return 16 + i / 8 * 4; })}};
    static ALWAYS_INLINE bool fits(const uint8_t* block) { return magnitude(block + 80) < 0x4800 && magnitude(block + 82) < 0x4800; }
    static ALWAYS_INLINE void unpack(const uint8_t* block, uint8_t* to) {
        const uint64_t low = read<uint64_t>(block), high = read<uint64_t>(block + 8), nibbles = 0x0f0f0f0f0f0f0f0f;
        const words16 scales = scaled(widen(low & nibbles, high & nibbles), splat16(read<uint16_t>(block + 80)));
        const words16 offsets = scaled(widen(low >> 4 & nibbles, high >> 4 & nibbles), splat16(read<uint16_t>(block + 82)));
        const words q = read<words>(block + 16), pair = words{} + 3;
#pragma GCC unroll 2
        for (int two = 0; two < 2; two++) {
            const words scale = look_up(scales, PLACES.of[two]), offset = look_up(offsets, PLACES.of[two]);
            const words table = bf16_of_halves(multiply_subtract(VALUES, scale, offset));
#pragma GCC unroll 4
            for (int s = 0; s < 4; s++)
                put(to, 4 * two + s, look_up(table, select(pair, q >> (4 * two + s / 2 * 2 + s % 2 * 8), TABLES.of[s / 2])));
        }
    }
};

// 32 bytes of third bits (bit b of each for the columns from 32 b on), 64 of pairs of bits, 16 scales of six bits less
// 32, d: weights less 4. As Q2_K, with a table for each pair of bits.
struct Q3_K : Type<PairsOf64, GGML_TYPE_Q3_K, 110, 256> {
    static words places(int first) {
        return words_of([&](int i) { return first + 8 * (i / 16) + i % 16 / 8; });
    }
    static inline const Places PLACES = {{places(0), places(2), places(4), places(6)}};
    static inline const words VALUES = words_of([](int i) { return half_of(i % 8 - 4); });
    static inline const words TABLES = words_of([](int i) { return i / 8 * 8; }), SHIFTS = in_halves(0, 4);
    static ALWAYS_INLINE bool fits(const uint8_t* block) { return magnitude(block + 108) < 0x4400; }
    static ALWAYS_INLINE void unpack(const uint8_t* block, uint8_t* to) {
        const uint64_t low = read<uint64_t>(block + 96), bits = read<uint32_t>(block + 104);
        const uint64_t nibbles = 0x0f0f0f0f0f0f0f0f, pairs = 0x0303030303030303, all = bits | bits << 30;
        const uint64_t first = (low & nibbles) | (all & pairs) << 4, second = (low >> 4 & nibbles) | (all >> 4 & pairs) << 4;
        const words16 scales = scaled(widen(first, second) - 32, splat16(read<uint16_t>(block + 108)));
        const words q = read<words>(block + 32), third = shift_right_each(twice(block), SHIFTS);
        const words pair = words{} + 3, four = words{} + 4;
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            const words table = bf16_of_halves(multiply(VALUES, look_up(scales, PLACES.of[j])));
#pragma GCC unroll 2
            for (int odd = 0; odd < 2; odd++) {
                const int at = j + 8 * odd;
                const words bit = select(four, at < 2 ? third << (2 - at) : third >> (at - 2), TABLES);
                put(to, 2 * j + odd, look_up(table, select(pair, q >> (2 * j + 8 * odd), bit)));
            }
        }
    }
};

// ---- blocks of 32

// Returns true if eight blocks have scales, and offsets behind them, below 2.
template <int BLOCK_BYTES, bool HAS_OFFSETS = false>
ALWAYS_INLINE bool are_below_two(const uint8_t* block) {
    uint32_t all = 0;
    for (int b = 0; b < 8; b++, block += BLOCK_BYTES) all |= HAS_OFFSETS ? read<uint32_t>(block) : read<uint16_t>(block);
    return !(all & (HAS_OFFSETS ? 0x40004000 : 0x4000));
}

// d, 32 signed bytes.
struct Q8_0 : Type<AsStored, GGML_TYPE_Q8_0, 8 * 34, 32> {
    static ALWAYS_INLINE bool fits(const uint8_t* block) { return are_below_two<34>(block); }
    static ALWAYS_INLINE void unpack(const uint8_t* block, uint8_t* to) {
        const words factor = words{} + 0x5800;
#pragma GCC unroll 8
        for (int b = 0; b < 8; b++, block += 34) {
            const words scale = multiply(words{} + read<uint16_t>(block), factor);
            put(to, b, bf16_of_halves(multiply(halves_of(widen_signed(block + 2)), scale)));
        }
    }
};

// d, 32 fifth bits, 16 bytes of nibbles: weights less 16.
struct Q5_0 : Type<AsStored, GGML_TYPE_Q5_0, 8 * 22, 32> {
    static ALWAYS_INLINE bool fits(const uint8_t* block) { return are_below_two<22>(block); }
    static ALWAYS_INLINE void unpack(const uint8_t* block, uint8_t* to) {
        const words factor = words{} + 0x5800;
#pragma GCC unroll 8
        for (int b = 0; b < 8; b++, block += 22) {
            const words scale = multiply(words{} + read<uint16_t>(block), factor);
            put(to, b, bf16_of_halves(multiply(halves_of(five_bits(block + 6, read<uint32_t>(block + 2)) - 16), scale)));
        }
    }
};

// A scale, an offset, 32 fifth bits, 16 bytes of nibbles.
struct Q5_1 : Type<AsStored, GGML_TYPE_Q5_1, 8 * 24, 32> {
    static ALWAYS_INLINE bool fits(const uint8_t* block) { return are_below_two<24, true>(block); }
    static ALWAYS_INLINE void unpack(const uint8_t* block, uint8_t* to) {
        const words factor = words{} + 0x5800, negative = words{} + 0xd800;
#pragma GCC unroll 8
        for (int b = 0; b < 8; b++, block += 24) {
            const words scale = multiply(words{} + read<uint16_t>(block), factor);
            const words offset = multiply(words{} + read<uint16_t>(block + 2), negative);
            put(to, b, bf16_of_halves(multiply_subtract(halves_of(five_bits(block + 8, read<uint32_t>(block + 4))), scale, offset)));
        }
    }
};

ALWAYS_INLINE void put_two_blocks(uint8_t* to, int step, words nibbles, words table) {
    const words low = words{} + 15;
    put(to, step, look_up(table, select(low, nibbles, SECOND_TABLE)));
    put(to, step + 1, look_up(table, select(low, nibbles >> 4, SECOND_TABLE)));
}
constexpr int IQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// d, 16 bytes of nibbles, each a place in a table.
template <class Format, ggml_type NUMBER>
struct TableBlocks : Type<TwoBlocks, NUMBER, 8 * 18, 32> {
    static ALWAYS_INLINE bool fits(const uint8_t* block) { return are_below_two<18>(block); }
    static ALWAYS_INLINE void unpack(const uint8_t* block, uint8_t* to) {
        const words values = Format::TABLE;  // times 2^7
#pragma GCC unroll 4
        for (int b = 0; b < 8; b += 2, block += 36)
            put_two_blocks(to, b, widen_two(block + 2, block + 20),
                           bf16_of_halves(multiply(values, two_splats(block, block + 18))));
    }
};
struct Q4_0 : TableBlocks<Q4_0, GGML_TYPE_Q4_0> {
    static inline const words TABLE = words_of([](int i) { return half_of(128 * (i % 16 - 8)); });
};
struct IQ4_NL : TableBlocks<IQ4_NL, GGML_TYPE_IQ4_NL> {
    static inline const words TABLE = words_of([](int i) { return half_of(128 * IQ4[i % 16]); });
};

// A scale, an offset, 16 bytes of nibbles.
struct Q4_1 : Type<TwoBlocks, GGML_TYPE_Q4_1, 8 * 20, 32> {
    static inline const words TABLE = words_of([](int i) { return half_of(128 * (i % 16)); });
    static ALWAYS_INLINE bool fits(const uint8_t* block) { return are_below_two<20, true>(block); }
    static ALWAYS_INLINE void unpack(const uint8_t* block, uint8_t* to) {
        const words values = TABLE, factor = words{} + 0xd800;  // -2^7
#pragma GCC unroll 4
        for (int b = 0; b < 8; b += 2, block += 40) {
            const words offset = multiply(two_splats(block + 2, block + 22), factor);
            put_two_blocks(to, b, widen_two(block + 4, block + 24),
                           bf16_of_halves(multiply_subtract(values, two_splats(block, block + 20), offset)));
        }
    }
};

// An exponent, 16 bytes of nibbles. All of it is exact in bf16: the exponent is added to the table's.
struct MXFP4 : Type<TwoBlocks, GGML_TYPE_MXFP4, 8 * 17, 32, 0> {
    static inline const words VALUES = words_of([](int i) {  // bf16 of 0, 0.5, 1, 1.5, 2, 3, 4, 6, less 127 exponents
        constexpr int BITS[8] = {0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0};
        return i % 8 == 0 ? (i & 8) << 12 : BITS[i % 8] + ((i & 8) << 12) - 0x3f80;
    });
    static inline const words NOT_ZERO = words_of([](int i) { return i % 8 ? 0xffff : 0; });
    static ALWAYS_INLINE bool fits(const uint8_t* block) {
        uint8_t most = 0;
        for (int b = 0; b < 8; b++) most = std::max(most, block[17 * b]);
        return most < 253;
    }
    static ALWAYS_INLINE void unpack(const uint8_t* block, uint8_t* to) {
        const words values = VALUES, not_zero = NOT_ZERO;
#pragma GCC unroll 4
        for (int b = 0; b < 8; b += 2, block += 34) {
            const uint32_t first = std::max<int>(block[0], 2) << 7, second = std::max<int>(block[17], 2) << 7;
            put_two_blocks(to, b, widen_two(block + 1, block + 18), values + (two_splats(&first, &second) & not_zero));
        }
    }
};

// A superblock: d, two bits of each of 8 scales, four bits of each, 8 x 16 bytes of nibbles.
struct IQ4_XS : Type<TwoBlocks, GGML_TYPE_IQ4_XS, 136, 256> {
    static inline const words TABLE = words_of([](int i) { return half_of(IQ4[i % 16]); });
    static inline const Places PLACES = {{in_halves(0, 1), in_halves(2, 3), in_halves(4, 5), in_halves(6, 7)}};
    static ALWAYS_INLINE bool fits(const uint8_t* block) { return magnitude(block) < 0x3000; }
    static ALWAYS_INLINE void unpack(const uint8_t* block, uint8_t* to) {
        uint64_t six = 0;
        for (int b = 0; b < 8; b++)
            six |= uint64_t((read<uint32_t>(block + 4) >> (4 * b) & 15) | (read<uint16_t>(block + 2) >> (2 * b) & 3) << 4) << (8 * b);
        const words16 scales = scaled(widen(six, 0) - 32, splat16(read<uint16_t>(block)));
        const words values = TABLE;
#pragma GCC unroll 4
        for (int b = 0; b < 8; b += 2)
            put_two_blocks(to, b, widen(block + 8 + 16 * b), bf16_of_halves(multiply(values, look_up(scales, PLACES.of[b / 2]))));
    }
};

// Weights of a grid, whose scales are 2 * number + 1: those of even blocks of 16 or 32, then of odd ones. LARGEST: a bound
// of the superblock's unit, in half precision.
template <class Format, class Grid, uint16_t LARGEST>
struct GridWeights : Type<AsStored, Grid::TYPE, Grid::BLOCK_BYTES, 256> {
    static constexpr int TIMES = Grid::HAS_SIGNS_APART ? 1 : 2;
    static constexpr uint16_t FACTOR = (15 + 7 + Grid::WORTH + 1 - TIMES) << 10;
    static words places(int step) {
        return Grid::BLOCK == 16 ? in_halves(step, 8 + step) : words{} + uint16_t(8 * (step % 2) + step / 2);
    }
    static inline const Places PLACES = {{places(0), places(1), places(2), places(3), places(4), places(5), places(6), places(7)}};
    static ALWAYS_INLINE bool fits(const uint8_t* block) { return magnitude(block) < LARGEST; }
    static ALWAYS_INLINE void unpack(const uint8_t* block, uint8_t* to) {
        const words16 scales = multiply(multiply(halves_of(2 * Format::numbers(block) + 1), splat16(FACTOR)), splat16(read<uint16_t>(block)));
        const Grid grid{};
        for (int pass = 0; pass < 4; pass++) {
            const auto bytes = grid.weights(block, pass);
            put_part(to, 2 * pass, &bytes.first, scales);
            put_part(to, 2 * pass + 1, &bytes.second, scales);
        }
    }

private:
    static ALWAYS_INLINE void put_part(uint8_t* to, int step, const void* bytes, words16 scales) {
        const words integers = uint16_t(TIMES) * widen(bytes) - uint16_t(Grid::CENTRE_TWICE * TIMES / 2);
        put(to, step, bf16_of_halves(multiply(halves_of(integers), look_up(scales, PLACES.of[step]))));
    }
};
// Nibbles of eight bytes.
ALWAYS_INLINE words16 low_then_high(uint64_t bytes) {
    const uint64_t nibbles = 0x0f0f0f0f0f0f0f0f;
    return widen(bytes & nibbles, bytes >> 4 & nibbles);
}
// The upper nibbles of eight words, each so many bytes behind the one before.
template <int STRIDE>
ALWAYS_INLINE words16 upper_nibbles(const uint8_t* last_byte) {
    uint64_t bytes = 0;
    for (int b = 0; b < 8; b++) bytes |= uint64_t(last_byte[STRIDE * b] >> 4) << (8 * (b / 2) + 4 * (b % 2));
    return low_then_high(bytes);
}
struct IQ2_XXS : GridWeights<IQ2_XXS, products::IQ2_XXS, 0x4000> {
    static ALWAYS_INLINE words16 numbers(const uint8_t* block) { return upper_nibbles<8>(block + 9); }
};
struct IQ2_XS : GridWeights<IQ2_XS, products::IQ2_XS, 0x4000> {
    static ALWAYS_INLINE words16 numbers(const uint8_t* block) { return low_then_high(read<uint64_t>(block + 66)); }
};
struct IQ2_S : GridWeights<IQ2_S, products::IQ2_S, 0x4000> {
    static ALWAYS_INLINE words16 numbers(const uint8_t* block) { return low_then_high(read<uint64_t>(block + 74)); }
};
struct IQ3_XXS : GridWeights<IQ3_XXS, products::IQ3_XXS, 0x3800> {
    static ALWAYS_INLINE words16 numbers(const uint8_t* block) { return upper_nibbles<4>(block + 69); }
};
struct IQ3_S : GridWeights<IQ3_S, products::IQ3_S, 0x3c00> {
    static ALWAYS_INLINE words16 numbers(const uint8_t* block) { return low_then_high(read<uint32_t>(block + 106)); }
};

// ---- numbers

struct AlwaysFits {
    static ALWAYS_INLINE bool fits(const uint8_t*) { return true; }
};

struct F16 : AlwaysFits, Type<AsStored, GGML_TYPE_F16, 2 * PANEL, 1, 0> {
    static ALWAYS_INLINE void unpack(const uint8_t* from, uint8_t* to) {
        for (int s = 0; s < STEPS; s++, from += 2 * STEP) {
            float numbers[STEP];
            for (int i = 0; i < STEP; i += simd::LANES)
                simd::store(numbers + i, simd::load_f16(reinterpret_cast<const uint16_t*>(from) + i));
            amx::store_bf16(reinterpret_cast<uint16_t*>(to + s * amx::TILE_BYTES), numbers);
        }
    }
};

struct BF16 : AlwaysFits, Type<AsStored, GGML_TYPE_BF16, 2 * PANEL, 1, 0> {
    static ALWAYS_INLINE void unpack(const uint8_t* from, uint8_t* to) {
        for (int s = 0; s < STEPS; s++) put(to, s, read<words>(from + 2 * STEP * s));
    }
};

// Packs it whatever its scales are.
template <class Format>
ALWAYS_INLINE void unpack_panel(const uint8_t* block, uint8_t* to) {
    if (__builtin_expect(Format::fits(block), 1)) Format::unpack(block, to);
    else unpack_by_ggml<typename Format::Order>(Format::TYPE, Format::POWER, block, to);
}

}  // namespace tiles
