// Vectors of 32 words of 16 bits, and half-precision arithmetic on them: the CPU's AVX-512 and AVX512-FP16, or plain loops
// with the same results.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "int8_lanes.hpp"

namespace tiles {

typedef uint16_t words __attribute__((vector_size(64)));
typedef uint16_t words16 __attribute__((vector_size(32)));

template <class T>
ALWAYS_INLINE T read(const void* from) {
    T x;
    std::memcpy(&x, from, sizeof x);
    return x;
}
template <class F>
words words_of(F f) {
    words x{};
    for (int i = 0; i < 32; i++) x[i] = uint16_t(f(i));
    return x;
}

// ---- single halves: sums and products are exact in f64, and rounded once to the nearest even.

inline double half_value(uint16_t half) { return simd::from_f16(half); }
inline uint16_t half_of(double x) {
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    x = std::fabs(x);
    if (std::isnan(x)) return sign | 0x7e00;
    if (x >= 65520) return sign | 0x7c00;
    if (x < 0x1p-14) return sign | uint16_t(std::nearbyint(x * 0x1p24));
    int exponent;
    const double fraction = std::nearbyint(std::frexp(x, &exponent) * 2048);  // 1024 to 2048
    return sign | uint16_t(((exponent + 14) << 10) + int(fraction) - 1024);
}

// ---- vectors of halves

#if defined(__AVX512FP16__)
inline words16 halves_of(words16 integers) { return (words16)_mm256_cvtepi16_ph((__m256i)integers); }
inline words halves_of(words integers) { return (words)_mm512_cvtepi16_ph((__m512i)integers); }
inline words16 multiply(words16 a, words16 b) { return (words16)_mm256_mul_ph((__m256h)a, (__m256h)b); }
inline words multiply(words a, words b) { return (words)_mm512_mul_ph((__m512h)a, (__m512h)b); }
inline words multiply_subtract(words a, words b, words c) {
    return (words)_mm512_fmsub_ph((__m512h)a, (__m512h)b, (__m512h)c);
}
inline words subtract(words a, words b) { return (words)_mm512_sub_ph((__m512h)a, (__m512h)b); }
// To the nearest integers.
inline words integers_of(words halves) { return (words)_mm512_cvtph_epi16((__m512h)halves); }
#else
template <class Vector, class F>
Vector each(F f) {
    Vector x;
    for (size_t i = 0; i < sizeof x / 2; i++) x[i] = half_of(f(i));
    return x;
}
template <class Vector>
Vector halves_of(Vector n) {
    return each<Vector>([&](int i) { return double(int16_t(n[i])); });
}
template <class Vector>
Vector multiply(Vector a, Vector b) {
    return each<Vector>([&](int i) { return half_value(a[i]) * half_value(b[i]); });
}
inline words multiply_subtract(words a, words b, words c) {
    return each<words>([&](int i) { return std::fma(half_value(a[i]), half_value(b[i]), -half_value(c[i])); });
}
inline words subtract(words a, words b) {
    return each<words>([&](int i) { return half_value(a[i]) - half_value(b[i]); });
}
inline words integers_of(words halves) {
    return words_of([&](int i) {
        const double x = half_value(halves[i]);
        return std::fabs(x) < 32768 ? int(std::nearbyint(x)) : -32768;
    });
}
#endif

// 16 floats.
typedef float numbers __attribute__((vector_size(64)));

inline words16 halves_of(numbers x) {
#if defined(INSTRUCTION_SET_512)
    return (words16)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT);
#else
    words16 halves;
    for (int i = 0; i < 16; i++) halves[i] = half_of(x[i]);
    return halves;
#endif
}
// Of 16 signed bytes.
ALWAYS_INLINE numbers numbers_of_bytes(const void* bytes) {
#if defined(INSTRUCTION_SET_512)
    return (numbers)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)bytes)));
#else
    numbers x;
    for (int i = 0; i < 16; i++) x[i] = static_cast<const int8_t*>(bytes)[i];
    return x;
#endif
}
// To the nearest integers, which have 16 bits.
inline words16 integers_of(numbers x) {
#if defined(INSTRUCTION_SET_512)
    return (words16)_mm512_cvtepi32_epi16(_mm512_cvtps_epi32((__m512)x));
#else
    words16 integers;
    for (int i = 0; i < 16; i++) integers[i] = uint16_t(int(std::nearbyint(x[i])));
    return integers;
#endif
}

// ---- vectors of words

// Each byte as a word, with or without its sign.
ALWAYS_INLINE words widen(const void* bytes) {
    typedef uint8_t vector __attribute__((vector_size(32)));
    return __builtin_convertvector(read<vector>(bytes), words);
}
ALWAYS_INLINE words widen_signed(const void* bytes) {
    typedef int8_t vector __attribute__((vector_size(32)));
    typedef int16_t wide __attribute__((vector_size(64)));
    return (words)__builtin_convertvector(read<vector>(bytes), wide);
}
ALWAYS_INLINE words16 widen(uint64_t low, uint64_t high) {
    typedef uint8_t vector __attribute__((vector_size(16)));
    typedef uint64_t two __attribute__((vector_size(16)));
    return __builtin_convertvector((vector)two{low, high}, words16);
}

#if defined(INSTRUCTION_SET_512)
inline words look_up(words table, words places) {
    return (words)_mm512_permutexvar_epi16((__m512i)places, (__m512i)table);
}
// The places' upper bits are ignored, here too.
inline words look_up(words16 table, words places) {
    return look_up((words)_mm512_castsi256_si512((__m256i)table), places);
}
// Bits of a where the mask has ones, else of b.
inline words select(words mask, words a, words b) {
    return (words)_mm512_ternarylogic_epi32((__m512i)mask, (__m512i)a, (__m512i)b, 0xca);
}
// a | (b & mask)
inline words join(words a, words b, words mask) {
    return (words)_mm512_ternarylogic_epi32((__m512i)a, (__m512i)b, (__m512i)mask, 0xf8);
}
// 16 bytes and 16 others, as words.
inline words widen_two(const void* first, const void* second) {
    return (words)_mm512_cvtepu8_epi16(_mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_loadu_si128((const __m128i*)first)), _mm_loadu_si128((const __m128i*)second), 1));
}
// The low nibbles of 16 bytes, then the high ones, and 16 for each whose bit is set.
inline words five_bits(const void* nibbles, uint32_t fifth_bits) {
    const __m128i x = _mm_loadu_si128((const __m128i*)nibbles), low = _mm_set1_epi8(15);
    const __m256i four = _mm256_set_m128i(_mm_and_si128(_mm_srli_epi16(x, 4), low), _mm_and_si128(x, low));
    const __m512i wide = _mm512_cvtepu8_epi16(four);
    return (words)_mm512_mask_add_epi16(wide, fifth_bits, wide, _mm512_set1_epi16(16));
}
// 32 bytes, twice.
inline words twice(const void* bytes) { return (words)_mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i*)bytes)); }
// The word at `first` in the first 16 lanes, that at `second` in the others. (Reads four bytes.)
inline words two_splats(const void* first, const void* second) {
    const __m512i both = _mm512_mask_set1_epi32(_mm512_set1_epi32(read<int>(first)), 0xff00, read<int>(second));
    return (words)_mm512_shuffle_epi8(both, _mm512_set1_epi16(0x0100));
}
inline words shift_right_each(words x, words by) { return (words)_mm512_srlv_epi16((__m512i)x, (__m512i)by); }
// In each 16 bytes, the eight words of both as bytes, those of the first before those of the second.
inline words packed_bytes(words first, words second) { return (words)_mm512_packs_epi16((__m512i)first, (__m512i)second); }
// Halves to bf16 of 2^-112 times the value, to the nearest: (x + 4) >> 3, and the sign. Exponents only change their
// place. Half-precision denormal numbers become bf16's, which are zeros to tiles.
inline words bf16_of_halves(words x) {
    return (words)_mm512_mulhrs_epi16((__m512i)x, _mm512_set1_epi16(4096)) & 0x8fff;
}
#else
inline words look_up(words table, words places) {
    return words_of([&](int i) { return table[places[i] & 31]; });
}
inline words look_up(words16 table, words places) {
    return words_of([&](int i) { return table[places[i] & 15]; });
}
inline words select(words mask, words a, words b) { return (mask & a) | (~mask & b); }
inline words join(words a, words b, words mask) { return a | (b & mask); }
inline words widen_two(const void* first, const void* second) {
    return words_of([&](int i) { return static_cast<const uint8_t*>(i < 16 ? first : second)[i % 16]; });
}
inline words five_bits(const void* nibbles, uint32_t fifth_bits) {
    const uint8_t* bytes = static_cast<const uint8_t*>(nibbles);
    return words_of([&](int i) { return (i < 16 ? bytes[i] & 15 : bytes[i - 16] >> 4) | (fifth_bits >> i & 1) << 4; });
}
inline words twice(const void* bytes) {
    return words_of([&](int i) { return read<uint16_t>(static_cast<const uint8_t*>(bytes) + 2 * (i % 16)); });
}
inline words two_splats(const void* first, const void* second) {
    return words_of([&](int i) { return read<uint16_t>(i < 16 ? first : second); });
}
inline words shift_right_each(words x, words by) { return x >> by; }
inline words packed_bytes(words first, words second) {
    const auto byte = [&](int i) {
        const auto word = int16_t((i % 16 < 8 ? first : second)[i / 16 * 8 + i % 8]);
        return word < -128 ? -128 : word > 127 ? 127 : word;
    };
    return words_of([&](int i) { return (byte(2 * i) & 0xff) | (byte(2 * i + 1) & 0xff) << 8; });
}
inline words bf16_of_halves(words x) {
    return words_of([&](int i) { return (x[i] & 0x8000) | (((x[i] & 0x7fff) + 4) >> 3); });
}
#endif

// For each byte of `places`, all less than 64, the table's byte there.
inline words look_up_bytes(words table, words places) {
#if defined(__AVX512VBMI__)
    return (words)_mm512_permutexvar_epi8((__m512i)places, (__m512i)table);
#else
    uint8_t of[64], bytes[64];
    std::memcpy(of, &table, sizeof of), std::memcpy(bytes, &places, sizeof bytes);
    for (uint8_t& byte : bytes) byte = of[byte];
    return read<words>(bytes);
#endif
}

// Turns 16 x 16 numbers of 32 bits. Strides are between rows, in numbers.
inline void transpose_16(const uint32_t* from, size_t stride, uint32_t* to, size_t to_stride = 16) {
#if defined(INSTRUCTION_SET_512)
    __m512i r[16], t[16];
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(from + i * stride);
    for (int i = 0; i < 16; i += 2)
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]), t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
            r[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
        }
    for (int i = 0; i < 4; i++) {  // r[4 j + i]: columns i, 4 + i, 8 + i, 12 + i of rows 4 j to 4 j + 3
        const __m512i a = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88), b = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
        const __m512i c = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd), d = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
        t[i] = _mm512_shuffle_i32x4(a, b, 0x88), t[8 + i] = _mm512_shuffle_i32x4(a, b, 0xdd);
        t[4 + i] = _mm512_shuffle_i32x4(c, d, 0x88), t[12 + i] = _mm512_shuffle_i32x4(c, d, 0xdd);
    }
    for (int i = 0; i < 16; i++) _mm512_storeu_si512(to + to_stride * i, t[i]);
#else
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) std::memcpy(to + to_stride * j + i, from + i * stride + j, sizeof *to);  // of any type
#endif
}

}  // namespace tiles
