// Instructions for products of bytes beside simd.hpp. No other file of the products names an instruction set.
// `dot` adds to each lane the four products of its four bytes. Activations are signed. Weights have at most seven
// bits; what has `bytes` in its name is for weights of eight, signed, to which BYTE_BIAS was added.
#pragma once

#include "simd.hpp"

// A compiler inlines less in larger files. Unpacking or multiplying a block must not become a call, which costs a third
// of the time of two rows.
#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace products {

using simd::floats;
using simd::ints;
using simd::LANES;

inline ints splat(int32_t word) { return word - ints{}; }

// The same four bytes in each lane.
inline ints splat_word(const int8_t* bytes) {
    int32_t word;
    std::memcpy(&word, bytes, sizeof word);
    return splat(word);
}

inline floats to_floats(ints x) { return __builtin_convertvector(x, floats); }

inline int32_t largest(ints x) {
#if defined(INSTRUCTION_SET_512)
    return _mm512_reduce_max_epi32((__m512i)x);
#else
    int32_t largest = x[0];
    for (int lane = 1; lane < LANES; lane++) largest = largest < x[lane] ? x[lane] : largest;
    return largest;
#endif
}

inline int32_t total(ints x) {
#if defined(INSTRUCTION_SET_512)
    return _mm512_reduce_add_epi32((__m512i)x);
#else
    int32_t total = x[0];
    for (int lane = 1; lane < LANES; lane++) total += x[lane];
    return total;
#endif
}

// Stores the low byte of each lane.
inline void store_bytes(int8_t* to, ints x) {
    typedef int8_t bytes __attribute__((vector_size(LANES)));
    const bytes narrow = __builtin_convertvector(x, bytes);
    std::memcpy(to, &narrow, sizeof narrow);
}

// Weights of VECTORS * LANES rows are multiplied by GROUP rows of activations at once. Their sums, of bytes and
// scaled, fill three quarters of the registers.
#if defined(INSTRUCTION_SET_NEON)
constexpr int VECTORS = 4;
#else
constexpr int VECTORS = 2;
#endif
constexpr int GROUP = simd::REGISTERS * 3 / 8 / VECTORS;

// Two numbers of 16 bits in each lane; `dot_pairs` adds both products of each lane. Where a dot product of bytes is
// more than one instruction (HAS_PAIRS), there is no `dot`: the first of them gives sums of two products, which can be
// added up as long as they fit into such pairs.
typedef int16_t pairs __attribute__((vector_size(4 * LANES)));
ints dot(ints sum, ints weights, ints activations);
pairs multiply_pairs(ints weights, ints activations);
pairs multiply_byte_pairs(ints weights, ints activations);

inline ints dot_pairs(ints sum, pairs x, pairs factors) {
#if defined(INSTRUCTION_SET_512) && defined(__AVX512VNNI__)
    return (ints)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)x, (__m512i)factors);
#elif defined(INSTRUCTION_SET_512)
    return sum + (ints)_mm512_madd_epi16((__m512i)x, (__m512i)factors);
#elif defined(INSTRUCTION_SET_256)
    return sum + (ints)_mm256_madd_epi16((__m256i)x, (__m256i)factors);
#elif defined(INSTRUCTION_SET_NEON) && defined(__aarch64__)
    const int16x8_t a = (int16x8_t)x, b = (int16x8_t)factors;
    return sum + (ints)vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b));
#else
    const ints a = (ints)x, b = (ints)factors;
    return sum + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

inline pairs pair_of(ints low, ints high) { return (pairs)((low & 0xffff) | (high << 16)); }

#if defined(INSTRUCTION_SET_512) && defined(__AVX512VNNI__)

constexpr bool HAS_DOT = true, HAS_PAIRS = false;
constexpr int BYTE_BIAS = 128;

inline ints dot(ints sum, ints weights, ints activations) {
    return (ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, (__m512i)activations);
}

#elif defined(INSTRUCTION_SET_512)

constexpr bool HAS_DOT = true, HAS_PAIRS = true;
constexpr int BYTE_BIAS = 0;

inline pairs multiply_pairs(ints weights, ints activations) {
    return (pairs)_mm512_maddubs_epi16((__m512i)weights, (__m512i)activations);
}

inline pairs multiply_byte_pairs(ints weights, ints activations) {
    const __mmask64 negative = _mm512_movepi8_mask((__m512i)weights);
    const __m512i turned = _mm512_mask_sub_epi8((__m512i)activations, negative, __m512i{}, (__m512i)activations);
    return multiply_pairs((ints)_mm512_abs_epi8((__m512i)weights), (ints)turned);
}

#elif defined(INSTRUCTION_SET_256) && defined(__AVXVNNI__)

constexpr bool HAS_DOT = true, HAS_PAIRS = false;
constexpr int BYTE_BIAS = 128;

inline ints dot(ints sum, ints weights, ints activations) {
    return (ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)weights, (__m256i)activations);
}

#elif defined(INSTRUCTION_SET_256)

constexpr bool HAS_DOT = true, HAS_PAIRS = true;
constexpr int BYTE_BIAS = 0;

inline pairs multiply_pairs(ints weights, ints activations) {
    return (pairs)_mm256_maddubs_epi16((__m256i)weights, (__m256i)activations);
}

inline pairs multiply_byte_pairs(ints weights, ints activations) {
    const __m256i turned = _mm256_sign_epi8((__m256i)activations, (__m256i)weights);
    return multiply_pairs((ints)_mm256_abs_epi8((__m256i)weights), (ints)turned);
}

#elif defined(INSTRUCTION_SET_NEON) && defined(__ARM_FEATURE_DOTPROD)

constexpr bool HAS_DOT = true, HAS_PAIRS = false;
constexpr int BYTE_BIAS = 0;

inline ints dot(ints sum, ints weights, ints activations) {
    return (ints)vdotq_s32((int32x4_t)sum, (int8x16_t)weights, (int8x16_t)activations);
}

#else

constexpr bool HAS_DOT = false, HAS_PAIRS = false;
constexpr int BYTE_BIAS = 0;

inline ints dot(ints sum, ints weights, ints activations) {
    for (int lane = 0; lane < LANES; lane++)
        for (int byte = 0; byte < 32; byte += 8)
            sum[lane] += static_cast<int8_t>(weights[lane] >> byte) * static_cast<int8_t>(activations[lane] >> byte);
    return sum;
}

#endif

// A table of 16 bytes.
struct ByteTable {
    alignas(16) int8_t bytes[16];
};

// For each byte of `places`, all less than 16, the table's byte there.
inline ints look_up(const ByteTable& table, ints places) {
#if defined(INSTRUCTION_SET_512)
    const __m128i bytes = _mm_load_si128((const __m128i*)table.bytes);
    return (ints)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes), (__m512i)places);
#elif defined(INSTRUCTION_SET_256)
    const __m128i bytes = _mm_load_si128((const __m128i*)table.bytes);
    return (ints)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), (__m256i)places);
#elif defined(INSTRUCTION_SET_NEON) && defined(__aarch64__)
    return (ints)vqtbl1q_s8(vld1q_s8(table.bytes), (uint8x16_t)places);
#else
    int8_t bytes[sizeof places];
    std::memcpy(bytes, &places, sizeof bytes);
    for (int8_t& byte : bytes) byte = table.bytes[byte];
    std::memcpy(&places, bytes, sizeof bytes);
    return places;
#endif
}

// Turns four words of each of LANES rows, `stride` bytes apart, into four vectors: word w of all rows is words[w].
#if defined(INSTRUCTION_SET_512)

// Four words of the rows 0, 4, 8 and 12.
ALWAYS_INLINE __m512i every_fourth(const uint8_t* first, size_t stride) {
    const auto row = [&](int number) { return _mm_loadu_si128((const __m128i*)(first + number * stride)); };
    __m512i rows = _mm512_castsi128_si512(row(0));
    rows = _mm512_inserti32x4(rows, row(4), 1);
    rows = _mm512_inserti32x4(rows, row(8), 2);
    return _mm512_inserti32x4(rows, row(12), 3);
}

ALWAYS_INLINE void transpose_words(const uint8_t* first, size_t stride, ints (&words)[4]) {
    const __m512i a = every_fourth(first, stride), b = every_fourth(first + stride, stride);
    const __m512i c = every_fourth(first + 2 * stride, stride), d = every_fourth(first + 3 * stride, stride);
    const __m512i ab_low = _mm512_unpacklo_epi32(a, b), ab_high = _mm512_unpackhi_epi32(a, b);
    const __m512i cd_low = _mm512_unpacklo_epi32(c, d), cd_high = _mm512_unpackhi_epi32(c, d);
    words[0] = (ints)_mm512_unpacklo_epi64(ab_low, cd_low);
    words[1] = (ints)_mm512_unpackhi_epi64(ab_low, cd_low);
    words[2] = (ints)_mm512_unpacklo_epi64(ab_high, cd_high);
    words[3] = (ints)_mm512_unpackhi_epi64(ab_high, cd_high);
}

#elif defined(INSTRUCTION_SET_256)

// Four words of the rows 0 and 4.
ALWAYS_INLINE __m256i every_fourth(const uint8_t* first, size_t stride) {
    const auto row = [&](int number) { return _mm_loadu_si128((const __m128i*)(first + number * stride)); };
    return _mm256_inserti128_si256(_mm256_castsi128_si256(row(0)), row(4), 1);
}

ALWAYS_INLINE void transpose_words(const uint8_t* first, size_t stride, ints (&words)[4]) {
    const __m256i a = every_fourth(first, stride), b = every_fourth(first + stride, stride);
    const __m256i c = every_fourth(first + 2 * stride, stride), d = every_fourth(first + 3 * stride, stride);
    const __m256i ab_low = _mm256_unpacklo_epi32(a, b), ab_high = _mm256_unpackhi_epi32(a, b);
    const __m256i cd_low = _mm256_unpacklo_epi32(c, d), cd_high = _mm256_unpackhi_epi32(c, d);
    words[0] = (ints)_mm256_unpacklo_epi64(ab_low, cd_low);
    words[1] = (ints)_mm256_unpackhi_epi64(ab_low, cd_low);
    words[2] = (ints)_mm256_unpacklo_epi64(ab_high, cd_high);
    words[3] = (ints)_mm256_unpackhi_epi64(ab_high, cd_high);
}

#else

ALWAYS_INLINE void transpose_words(const uint8_t* first, size_t stride, ints (&words)[4]) {
    for (int word = 0; word < 4; word++)
        for (int row = 0; row < LANES; row++) {
            int32_t value;
            std::memcpy(&value, first + row * stride + 4 * word, sizeof value);
            words[word][row] = value;
        }
}

#endif

// The half-precision numbers in the low halves of words.
inline floats low_halves(ints words) {
#if defined(INSTRUCTION_SET_256)
    const __m256i low = (__m256i)(words & 0xffff);
    return (floats)_mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
#else
    typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
    const halves narrow = __builtin_convertvector(words, halves);
    uint16_t stored[LANES];
    std::memcpy(stored, &narrow, sizeof stored);
    return simd::load_f16(stored);
#endif
}

inline floats high_halves(ints words) { return low_halves(words >> 16); }

// The half-precision numbers of LANES rows, `stride` bytes apart.
ALWAYS_INLINE floats load_halves(const uint8_t* first, size_t stride) {
    typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
    halves together{};
#pragma GCC unroll 16
    for (int row = 0; row < LANES; row++) {
        uint16_t half;
        std::memcpy(&half, first + row * stride, sizeof half);
        together[row] = half;
    }
    uint16_t stored[LANES];
    std::memcpy(stored, &together, sizeof stored);
    return simd::load_f16(stored);
}

}  // namespace products
