// Vectors of floats as wide as the CPU's, by the compiler's vector extension. Intrinsics are used only for instructions
// that the extension lacks. Without any of the known instruction sets everything still works, slowly.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "cpu.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(INSTRUCTION_SET_NEON)
#include <arm_neon.h>
#endif

namespace simd {

#if defined(INSTRUCTION_SET_512)
constexpr int LANES = 16;
constexpr int REGISTERS = 32;
#elif defined(INSTRUCTION_SET_256)
constexpr int LANES = 8;
constexpr int REGISTERS = 16;
#else
constexpr int LANES = 4;
constexpr int REGISTERS = 32;
#endif

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));

inline floats load(const float* from) {
    floats x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

inline void store(float* to, floats x) { std::memcpy(to, &x, sizeof x); }

inline ints load(const int32_t* from) {
    ints x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

inline void store(int32_t* to, ints x) { std::memcpy(to, &x, sizeof x); }

inline ints splat(int32_t x) { return x - ints{}; }

inline floats splat(float x) { return x - floats{}; }

// Hides the origin of a value from the compiler, which else would load the value again at each use, or delay a sum
// until all summands are there, and store these in memory.
template <class Vector>
inline Vector in_register(Vector x) {
#if defined(INSTRUCTION_SET_512)
    asm("" : "+v"(x));
#elif defined(INSTRUCTION_SET_256)
    asm("" : "+x"(x));
#endif
    return x;
}

// a * b + c with one rounding where the CPU can. It is explicit, because the compiler's own choice depends on the number
// of rows, so that a row's result would depend on the rows beside it.
inline floats multiply_add(floats a, floats b, floats c) {
#if defined(INSTRUCTION_SET_512)
    return (floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(INSTRUCTION_SET_256)
    return (floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(INSTRUCTION_SET_NEON)
    return (floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

// True if the CPU multiplies whole numbers of 16 bits faster than floats.
#if defined(INSTRUCTION_SET_512) || defined(INSTRUCTION_SET_256)
#define INSTRUCTION_SET_PAIRS
#endif

// Lanes are pairs of whole numbers of 16 bits: c + the products of both.
inline ints multiply_add(ints a, ints b, ints c) {
#if defined(INSTRUCTION_SET_512) && defined(__AVX512VNNI__)
    return (ints)_mm512_dpwssd_epi32((__m512i)c, (__m512i)a, (__m512i)b);
#elif defined(INSTRUCTION_SET_512)
    return c + (ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(INSTRUCTION_SET_256) && defined(__AVXVNNI__)
    return (ints)_mm256_dpwssd_avx_epi32((__m256i)c, (__m256i)a, (__m256i)b);
#elif defined(INSTRUCTION_SET_256)
    return c + (ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
    return c + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

inline floats max(floats a, floats b) {
#if defined(INSTRUCTION_SET_512)
    return (floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(INSTRUCTION_SET_256)
    return (floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return a > b ? a : b;
#endif
}

// Rounds to a whole number, for numbers below 2^22.
inline floats rounded(floats x) {
    const floats to_integer = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds
    return (x + to_integer) - to_integer;
}

// e^x with a relative error of about 1e-7; 0 below -87.3, -infinity included.
inline floats exp(floats x) {
    const ints vanishes = x < -87.3f;
    const floats bounded = max(x, splat(-87.3f));
    const floats x0 = bounded > 88.0f ? splat(88.0f) : bounded;
    const floats n = rounded(x0 * 1.44269504f);
    const floats r = x0 - n * 0.693359375f + n * 2.12194440e-4f;  // ln 2 in two parts
    floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const ints exponent = (__builtin_convertvector(n, ints) + 127) << 23;
    floats power;
    std::memcpy(&power, &exponent, sizeof power);
    return vanishes ? floats{} : p * power;
}

// 2^x for whole numbers up to 127; 0 below 2^-126.
inline floats power_of_2(floats x) {
    const ints bits = (__builtin_convertvector(max(splat(-127.0f), x), ints) + 127) << 23;
    floats power;
    std::memcpy(&power, &bits, sizeof power);
    return power;
}

// 2^(x - whole) with a relative error of about 1e-7, for a whole number. Only the exponent of the result depends on it.
inline floats exp2_less(floats x, floats whole) {
    const floats n = rounded(x), r = x - n;
    floats p = multiply_add(r, splat(1.3276471e-3f), splat(9.6755419e-3f));
    p = multiply_add(p, r, splat(5.5507131e-2f));
    p = multiply_add(p, r, splat(2.4022120e-1f));
    p = multiply_add(p, r, splat(6.9314694e-1f));
    p = multiply_add(p, r, splat(1.0000001f));
    return p * power_of_2(n - whole);
}

// 2^x with a relative error of 1e-4, for x up to 127; 0 below 2^-126.
inline floats exp2_short(floats x) {
#if defined(INSTRUCTION_SET_512)
    const floats r = (floats)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF);
#else
    const floats bounded = max(splat(-127.0f), x), nearest = rounded(bounded);
    const floats whole = bounded < nearest ? nearest - 1.0f : nearest, r = bounded - whole;
#endif
    floats p = multiply_add(r, splat(7.802451e-2f), splat(2.2606722e-1f));
    p = multiply_add(p, r, splat(6.9583349e-1f));
    p = multiply_add(p, r, splat(9.9992523e-1f));
#if defined(INSTRUCTION_SET_512)
    return (floats)_mm512_scalef_ps((__m512)p, (__m512)x);
#else
    return p * power_of_2(whole);
#endif
}

inline floats tanh(floats x) { return 1.0f - 2.0f / (exp(2.0f * x) + 1.0f); }

// Lane i of the result is lane i + step of x, around the end.
inline floats rotated(floats x, int step) {
    float twice[2 * LANES];
    store(twice, x);
    store(twice + LANES, x);
    return load(twice + step);
}

inline float total(floats x) {
#if defined(INSTRUCTION_SET_512)
    return _mm512_reduce_add_ps((__m512)x);
#elif defined(INSTRUCTION_SET_256)
    __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
#else
    float result = x[0];
    for (int i = 1; i < LANES; ++i) result += x[i];
    return result;
#endif
}

// Lane i of the result is the total of x[i].
inline floats totals(const floats (&x)[LANES]) {
#if defined(INSTRUCTION_SET_512)
    __m512 fours[4];  // in each quarter of a vector: totals over quarters of four vectors
    for (int i = 0; i < 4; ++i) {
        const __m512 a = (__m512)x[4 * i], b = (__m512)x[4 * i + 1], c = (__m512)x[4 * i + 2], d = (__m512)x[4 * i + 3];
        const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
        fours[i] = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    }
    const auto pairs = [](__m512 a, __m512 b) {
        return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    };
    return (floats)pairs(pairs(fours[0], fours[1]), pairs(fours[2], fours[3]));
#elif defined(INSTRUCTION_SET_256)
    // Blends and shuffles, because a horizontal addition takes two cycles.
    const auto halves = [&](int i) {
        const __m256 a = (__m256)x[i], b = (__m256)x[i + 4];
        return _mm256_add_ps(_mm256_blend_ps(a, b, 0xf0), _mm256_permute2f128_ps(a, b, 0x21));
    };
    const auto pairs = [](__m256 a, __m256 b) {
        return _mm256_add_ps(_mm256_blend_ps(a, b, 0xcc), _mm256_shuffle_ps(a, b, 0x4e));
    };
    const __m256 a = pairs(halves(0), halves(1)), b = pairs(halves(2), halves(3));
    return (floats)_mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
#else
    floats result;
    for (int i = 0; i < LANES; ++i) result[i] = total(x[i]);
    return result;
#endif
}

inline float from_f16(uint16_t bits) {
#if defined(INSTRUCTION_SET_512) || defined(INSTRUCTION_SET_256)
    return _cvtsh_ss(bits);
#elif defined(INSTRUCTION_SET_NEON)
    __fp16 half;
    std::memcpy(&half, &bits, sizeof half);
    return half;
#else
    const uint32_t sign = uint32_t(bits & 0x8000) << 16;
    const uint32_t exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
    if (exponent == 0) return float(fraction) * (sign ? -0x1p-24f : 0x1p-24f);
    const uint32_t wide = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
    float x;
    std::memcpy(&x, &wide, sizeof x);
    return x;
#endif
}

inline floats load_f16(const uint16_t* from) {
#if defined(INSTRUCTION_SET_512)
    return (floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(INSTRUCTION_SET_256)
    return (floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#elif defined(INSTRUCTION_SET_NEON)
    return (floats)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
#else
    floats x;
    for (int i = 0; i < LANES; ++i) x[i] = from_f16(from[i]);
    return x;
#endif
}

inline floats load_bf16(const uint16_t* from) {
    typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
    halves narrow;
    std::memcpy(&narrow, from, sizeof narrow);
    const ints wide = __builtin_convertvector(narrow, ints) << 16;
    floats x;
    std::memcpy(&x, &wide, sizeof x);
    return x;
}

inline floats load_i8(const int8_t* from) {
#if defined(INSTRUCTION_SET_512)
    return (floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
#elif defined(INSTRUCTION_SET_256)
    return (floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
#else
    typedef int8_t bytes __attribute__((vector_size(LANES)));
    bytes narrow;
    std::memcpy(&narrow, from, sizeof narrow);
    return __builtin_convertvector(__builtin_convertvector(narrow, ints), floats);
#endif
}

// Bit i of the result is 1 if from[i] is not `value`, for 32 values.
inline uint32_t differing(const uint16_t* from, uint16_t value) {
#if defined(INSTRUCTION_SET_512)
    return _mm512_cmpneq_epi16_mask(_mm512_loadu_si512(from), _mm512_set1_epi16(short(value)));
#elif defined(INSTRUCTION_SET_256)
    const __m256i wanted = _mm256_set1_epi16(short(value));
    const __m256i a = _mm256_cmpeq_epi16(_mm256_loadu_si256((const __m256i*)from), wanted);
    const __m256i b = _mm256_cmpeq_epi16(_mm256_loadu_si256((const __m256i*)(from + 16)), wanted);
    const __m256i in_order = _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0xd8);
    return ~uint32_t(_mm256_movemask_epi8(in_order));
#else
    uint32_t bits = 0;
    for (int i = 0; i < 32; ++i) bits |= uint32_t(from[i] != value) << i;
    return bits;
#endif
}

// Returns the bits of x at the places of the ones of `places`, moved together to the low end.
inline uint64_t gathered(uint64_t x, uint64_t places) {
#if defined(__BMI2__)
    return _pext_u64(x, places);
#else
    uint64_t result = 0;
    for (uint64_t next = 1; places; places &= places - 1, next <<= 1)
        if (x & places & -places) result |= next;
    return result;
#endif
}

}  // namespace simd
