// What matrix products need of an instruction set, and the only file of theirs that names one.
// A vector has LANES 32-bit lanes; `dot` adds to each lane the four products of its four bytes. Weights have at most
// seven bits there; `dot_bytes` is for weights of eight, signed less BYTE_BIAS. Activations are signed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu.hpp"

#if defined(INSTRUCTION_SET_512) || defined(INSTRUCTION_SET_256)
#include <immintrin.h>
#elif defined(INSTRUCTION_SET_NEON)
#include <arm_neon.h>
#endif

namespace simd {

inline int32_t load_word(const void* bytes) {
    int32_t word;
    std::memcpy(&word, bytes, sizeof word);
    return word;
}

#if defined(INSTRUCTION_SET_512)

using Ints = __m512i;
using Floats = __m512;
constexpr int LANES = 16;
constexpr int VECTORS = 2;  // of weights that are multiplied at once
constexpr int GROUP = 6;    // rows of activations that are multiplied at once: 2 x 6 sums twice, in 32 registers

inline Ints spread(int32_t word) { return _mm512_set1_epi32(word); }
inline Floats spread(float number) { return _mm512_set1_ps(number); }
inline Ints load(const uint32_t* words) { return _mm512_loadu_si512(words); }
inline Floats load(const float* numbers) { return _mm512_loadu_ps(numbers); }
inline void store(float* numbers, Floats values) { _mm512_storeu_ps(numbers, values); }
inline Floats to_floats(Ints values) { return _mm512_cvtepi32_ps(values); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats multiply_add(Floats a, Floats b, Floats sum) { return _mm512_fmadd_ps(a, b, sum); }

#if defined(__AVX512VNNI__)
constexpr int BYTE_BIAS = 128;
inline Ints dot(Ints sum, Ints weights, Ints activations) { return _mm512_dpbusd_epi32(sum, weights, activations); }
inline Ints dot_bytes(Ints sum, Ints weights, Ints activations) { return dot(sum, weights, activations); }
#else
constexpr int BYTE_BIAS = 0;
inline Ints dot(Ints sum, Ints weights, Ints activations) {
    const Ints pairs = _mm512_maddubs_epi16(weights, activations);
    return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
inline Ints dot_bytes(Ints sum, Ints weights, Ints activations) {
    const Ints turned = _mm512_mask_sub_epi8(activations, _mm512_movepi8_mask(weights), Ints{}, activations);
    return dot(sum, _mm512_abs_epi8(weights), turned);
}
#endif

// Four words of each of 4 * 4 rows: row r of each quarter is `first + r * stride`.
inline Ints load_quarters(const uint8_t* first, size_t stride) {
    const auto part = [&](int quarter) { return _mm_loadu_si128((const __m128i*)(first + 4 * quarter * stride)); };
    Ints rows = _mm512_castsi128_si512(part(0));
    rows = _mm512_inserti32x4(rows, part(1), 1);
    rows = _mm512_inserti32x4(rows, part(2), 2);
    return _mm512_inserti32x4(rows, part(3), 3);
}

// Word w of LANES rows comes to `columns + w * column_stride`, four words of each.
inline void transpose_words(const uint8_t* first, size_t stride, uint32_t* columns, size_t column_stride) {
    const Ints a = load_quarters(first, stride), b = load_quarters(first + stride, stride);
    const Ints c = load_quarters(first + 2 * stride, stride), d = load_quarters(first + 3 * stride, stride);
    const Ints ab_low = _mm512_unpacklo_epi32(a, b), ab_high = _mm512_unpackhi_epi32(a, b);
    const Ints cd_low = _mm512_unpacklo_epi32(c, d), cd_high = _mm512_unpackhi_epi32(c, d);
    _mm512_storeu_si512(columns, _mm512_unpacklo_epi64(ab_low, cd_low));
    _mm512_storeu_si512(columns + column_stride, _mm512_unpackhi_epi64(ab_low, cd_low));
    _mm512_storeu_si512(columns + 2 * column_stride, _mm512_unpacklo_epi64(ab_high, cd_high));
    _mm512_storeu_si512(columns + 3 * column_stride, _mm512_unpackhi_epi64(ab_high, cd_high));
}

// The half-precision numbers in the low halves of LANES words.
inline Floats halves(const uint32_t* words) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_loadu_si512(words)));
}

#elif defined(INSTRUCTION_SET_256)

using Ints = __m256i;
using Floats = __m256;
constexpr int LANES = 8;
constexpr int VECTORS = 2;
constexpr int GROUP = 3;  // 2 x 3 sums twice, in 16 registers

inline Ints spread(int32_t word) { return _mm256_set1_epi32(word); }
inline Floats spread(float number) { return _mm256_set1_ps(number); }
inline Ints load(const uint32_t* words) { return _mm256_loadu_si256((const __m256i*)words); }
inline Floats load(const float* numbers) { return _mm256_loadu_ps(numbers); }
inline void store(float* numbers, Floats values) { _mm256_storeu_ps(numbers, values); }
inline Floats to_floats(Ints values) { return _mm256_cvtepi32_ps(values); }
inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats multiply_add(Floats a, Floats b, Floats sum) { return _mm256_fmadd_ps(a, b, sum); }

#if defined(__AVXVNNI__)
constexpr int BYTE_BIAS = 128;
inline Ints dot(Ints sum, Ints weights, Ints activations) {
    return _mm256_dpbusd_avx_epi32(sum, weights, activations);
}
inline Ints dot_bytes(Ints sum, Ints weights, Ints activations) { return dot(sum, weights, activations); }
#else
constexpr int BYTE_BIAS = 0;
inline Ints dot(Ints sum, Ints weights, Ints activations) {
    const Ints pairs = _mm256_maddubs_epi16(weights, activations);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
inline Ints dot_bytes(Ints sum, Ints weights, Ints activations) {
    return dot(sum, _mm256_abs_epi8(weights), _mm256_sign_epi8(activations, weights));
}
#endif

inline Ints load_halves(const uint8_t* first, size_t stride) {
    const auto part = [&](int half) { return _mm_loadu_si128((const __m128i*)(first + 4 * half * stride)); };
    return _mm256_inserti128_si256(_mm256_castsi128_si256(part(0)), part(1), 1);
}

inline void transpose_words(const uint8_t* first, size_t stride, uint32_t* columns, size_t column_stride) {
    const Ints a = load_halves(first, stride), b = load_halves(first + stride, stride);
    const Ints c = load_halves(first + 2 * stride, stride), d = load_halves(first + 3 * stride, stride);
    const Ints ab_low = _mm256_unpacklo_epi32(a, b), ab_high = _mm256_unpackhi_epi32(a, b);
    const Ints cd_low = _mm256_unpacklo_epi32(c, d), cd_high = _mm256_unpackhi_epi32(c, d);
    const auto put = [&](int word, Ints column) {
        _mm256_storeu_si256((__m256i*)(columns + word * column_stride), column);
    };
    put(0, _mm256_unpacklo_epi64(ab_low, cd_low));
    put(1, _mm256_unpackhi_epi64(ab_low, cd_low));
    put(2, _mm256_unpacklo_epi64(ab_high, cd_high));
    put(3, _mm256_unpackhi_epi64(ab_high, cd_high));
}

inline Floats halves(const uint32_t* words) {
    alignas(16) uint16_t packed[LANES];
    for (int lane = 0; lane < LANES; lane++) packed[lane] = static_cast<uint16_t>(words[lane]);
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i*)packed));
}

#elif defined(INSTRUCTION_SET_NEON) && defined(__ARM_FEATURE_DOTPROD)

using Ints = int32x4_t;
using Floats = float32x4_t;
constexpr int LANES = 4;
constexpr int VECTORS = 4;
constexpr int GROUP = 3;  // 4 x 3 sums twice, in 32 registers
constexpr int BYTE_BIAS = 0;

inline Ints spread(int32_t word) { return vdupq_n_s32(word); }
inline Floats spread(float number) { return vdupq_n_f32(number); }
inline Ints load(const uint32_t* words) { return vreinterpretq_s32_u32(vld1q_u32(words)); }
inline Floats load(const float* numbers) { return vld1q_f32(numbers); }
inline void store(float* numbers, Floats values) { vst1q_f32(numbers, values); }
inline Floats to_floats(Ints values) { return vcvtq_f32_s32(values); }
inline Floats add(Floats a, Floats b) { return vaddq_f32(a, b); }
inline Floats multiply(Floats a, Floats b) { return vmulq_f32(a, b); }
inline Floats multiply_add(Floats a, Floats b, Floats sum) { return vfmaq_f32(sum, a, b); }
inline Ints dot(Ints sum, Ints weights, Ints activations) {
    return vdotq_s32(sum, vreinterpretq_s8_s32(weights), vreinterpretq_s8_s32(activations));
}
inline Ints dot_bytes(Ints sum, Ints weights, Ints activations) { return dot(sum, weights, activations); }

inline void transpose_words(const uint8_t* first, size_t stride, uint32_t* columns, size_t column_stride) {
    for (int row = 0; row < LANES; row++)
        for (int word = 0; word < 4; word++)
            std::memcpy(columns + word * column_stride + row, first + row * stride + 4 * word, 4);
}

inline Floats halves(const uint32_t* words) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(vld1q_u32(words))));
}

#else
#define NO_PRODUCTS  // without such instructions ggml's own products are not slower
#endif

}  // namespace simd
