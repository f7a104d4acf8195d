// Superblocks of 256 weights as bytes for tiles, with one scale for all: the largest magnitude becomes 127.
//
// Weights of a block of 16 or 32 with a small scale lose bits, others hardly any: with activations as bytes, as
// ggml has them, results have 1.3 to 1.4 times the error of ggml's. Tiles multiply bytes twice as fast as bf16.
#pragma once

#include "tile_formats.hpp"
#include "unpack_k.hpp"

namespace tiles {

constexpr int BYTES_STEP = 64, BYTES_STEPS = PANEL / BYTES_STEP, HEADS = 16;

// Nibbles of 64 bytes, where 32 bytes have 32 low, then 32 high. 16 columns lie side by side in all orders.
struct LowOf64 {
    static constexpr int column(int place) {
        const int step = place / BYTES_STEP, lane = place % BYTES_STEP;
        return 128 * (step / 2) + 64 * (lane / 32) + 32 * (step % 2) + lane % 32;
    }
};

// Results of `head` for 16 superblocks at a time, which `unpack` needs.
struct Heads {
    words16 of[HEADS];
};

template <class ORDER, int PANEL_BYTES>
struct Superblock {
    using Order = ORDER;
    static constexpr int BYTES = PANEL_BYTES, BLOCK = PANEL;
};

// Eight words for each of four scales.
inline words four_places(int first) {
    return words_of([&](int i) { return first + i / 8; });
}
inline const Places FOUR_PLACES = {{four_places(0), four_places(4), four_places(8), four_places(12)}};

// Superblocks that begin with d, dmin, and eight scales and offsets of six bits; numbers go up to MOST. Keeps the scales 0-3,
// the offsets 0-3, and the others so, all of them relative to the superblock's scale.
template <int MOST, class Keep>
void six_bit_heads(const uint8_t* const* blocks, Heads& heads, float* scales, const Keep& keep) {
    using namespace simd;
    alignas(64) uint32_t words[HEADS][4];
    alignas(64) float numbers_of_rows[HEADS][HEADS], turned[HEADS][HEADS];
    for (int row = 0; row < HEADS; row++) std::memcpy(words[row], blocks[row], sizeof words[row]);
    for (int row = 0; row < HEADS; row += LANES) {
        ints head[4], integers[2][8], largest{};
        products::transpose_words(reinterpret_cast<const uint8_t*>(words[row]), sizeof words[row], head);
        products::split_six_bits(head[1], head[3], integers[0]);
        products::split_six_bits(head[2], head[3] >> 4, integers[1]);
        const floats d = products::low_halves(head[0]), dmin = products::high_halves(head[0]);
        floats of[2][8];
        for (int block = 0; block < 8; block++) {
            of[0][block] = d * products::to_floats(integers[0][block]), of[1][block] = dmin * products::to_floats(integers[1][block]);
            for (const floats end : {float{MOST} * of[0][block] - of[1][block], of[1][block]}) {
                const ints magnitude = products::bits_of(end) & 0x7fffffff;  // compared as integers, a NaN is larger than all
                largest = magnitude > largest ? magnitude : largest;
            }
        }
        const floats per_byte = (floats)largest;
        const floats bytes_per = (floats)((ints)(127.0F / per_byte) & (largest > 0));
        simd::store(scales + row, per_byte * (1 / 127.0F));
        for (int block = 0; block < 8; block++)
            for (int i = 0; i < 2; i++) simd::store(numbers_of_rows[block / 4 * 8 + 4 * i + block % 4] + row, of[i][block] * bytes_per);
    }
    transpose_16(reinterpret_cast<const uint32_t*>(numbers_of_rows), HEADS, reinterpret_cast<uint32_t*>(turned));
    for (int row = 0; row < HEADS; row++) heads.of[row] = keep(read<numbers>(turned[row]));
}

// 128 bytes of nibbles: a table for each scale.
struct Q4_K : Superblock<LowOf64, 144> {
    static inline const words FIRST = words_of([](int i) { return half_of(i % 8); });
    static inline const words SECOND = words_of([](int i) { return half_of(8 + i % 8); });
    static inline const words LOW = in_halves(0, 0x2020), HIGH = in_halves(0x1010, 0x3030);
    static void head(const uint8_t* const* blocks, Heads& heads, float* scales) {
        six_bit_heads<15>(blocks, heads, scales, [](numbers x) { return halves_of(x); });
    }
    static ALWAYS_INLINE void unpack(const uint8_t* block, words16 scales, uint8_t* to) {
        const words nibble = words{} + 0x0f0f, low = LOW, high = HIGH;
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const words factors = look_up(scales, FOUR_PLACES.of[2 * half]), offsets = look_up(scales, FOUR_PLACES.of[2 * half + 1]);
            const words table = packed_bytes(integers_of(multiply_subtract(FIRST, factors, offsets)),
                                             integers_of(multiply_subtract(SECOND, factors, offsets)));
            const words q = read<words>(block + 16 + 64 * half);
            put(to, 2 * half, look_up_bytes(table, select(nibble, q, low)));
            put(to, 2 * half + 1, look_up_bytes(table, select(nibble, q >> 4, high)));
        }
    }
};

// Bytes of numbers times factors less offsets, both times 2^8: rounded if the offsets have 2^7 less.
ALWAYS_INLINE words bytes_of(words q, words factors, words offsets) {
    const words even = (q & 0xff) * factors - offsets, odd = (q >> 8) * factors - offsets;
    return select(words{} + 0xff, even >> 8, odd);
}

// As Q4_K, with 32 bytes of fifth bits (bit b of each for block b) before the nibbles.
struct Q5_K : Superblock<LowOf64, 176> {
    static inline const Places SHIFTS = {{in_halves(0, 2), in_halves(4, 6)}};
    static inline const Places PLACES = {{in_halves(0, 2), in_halves(4, 6), in_halves(1, 3), in_halves(5, 7),
                                          in_halves(8, 10), in_halves(12, 14), in_halves(9, 11), in_halves(13, 15)}};
    static void head(const uint8_t* const* blocks, Heads& heads, float* scales) {
        constexpr float R = -128;
        const numbers rounding = {0, 0, 0, 0, R, R, R, R, 0, 0, 0, 0, R, R, R, R};
        six_bit_heads<31>(blocks, heads, scales, [&](numbers x) { return integers_of(x * 256 + rounding); });
    }
    static ALWAYS_INLINE void unpack(const uint8_t* block, words16 scales, uint8_t* to) {
        const words bits = twice(block + 16), nibble = words{} + 0x0f0f, fifth = words{} + 0x1010;
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const words* places = PLACES.of + 4 * half;
            const words x = read<words>(block + 48 + 64 * half), y = shift_right_each(bits, SHIFTS.of[half]);
            put(to, 2 * half, bytes_of(join(x & nibble, y << 4, fifth), look_up(scales, places[0]), look_up(scales, places[1])));
            put(to, 2 * half + 1,
                bytes_of(join((x >> 4) & nibble, y << 3, fifth), look_up(scales, places[2]), look_up(scales, places[3])));
        }
    }
};

// 128 bytes of nibbles, 64 of pairs of bits, 16 signed scales, d: weights less 32.
struct Q6_K : Superblock<AsStored, 210> {
    static inline const words SHIFTS = in_halves(0, 2);
    // Scales times 2^8, so that the largest times 32 becomes 127.
    static void head(const uint8_t* const* blocks, Heads& heads, float* scales) {
        using namespace simd;
        alignas(64) uint32_t words[HEADS][4];
        alignas(64) int32_t largest[HEADS];
        for (int row = 0; row < HEADS; row++) std::memcpy(words[row], blocks[row] + 192, sizeof words[row]);
        for (int row = 0; row < HEADS; row += LANES) {
            ints head[4], most = 1 - ints{};
            products::transpose_words(reinterpret_cast<const uint8_t*>(words[row]), sizeof words[row], head);
            for (int i = 0; i < 16; i++) {
                const ints scale = head[i / 4] << (24 - i % 4 * 8) >> 24, magnitude = scale < 0 ? -scale : scale;
                most = magnitude > most ? magnitude : most;
            }
            simd::store(largest + row, most);
        }
        for (int row = 0; row < HEADS; row++) {
            const float most = 32.0F * largest[row];
            heads.of[row] = integers_of(numbers_of_bytes(words[row]) * (127 * 256 / most));
            scales[row] = simd::from_f16(read<uint16_t>(blocks[row] + 208)) * most * (1 / 127.0F);
        }
    }
    static ALWAYS_INLINE void unpack(const uint8_t* block, words16 scales, uint8_t* to) {
        const words nibble = words{} + 0x0f0f, pair = words{} + 0x3030;
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const words x = read<words>(block + 64 * half), y = shift_right_each(twice(block + 128 + 32 * half), SHIFTS);
            const words first = look_up(scales, FOUR_PLACES.of[2 * half]), second = look_up(scales, FOUR_PLACES.of[2 * half + 1]);
            put(to, 2 * half, bytes_of(join(x & nibble, y << 4, pair), first, (first << 5) - 128));
            put(to, 2 * half + 1, bytes_of(join((x >> 4) & nibble, y, pair), second, (second << 5) - 128));
        }
    }
};

}  // namespace tiles
