// Makes a CPU with AVX2 appear to have AVX-512 (EMULATES_512), or int8 dot products (EMULATES_VNNI): SIMDe
// (https://github.com/simd-everywhere/simde) computes those intrinsics with what there is. It is included before all
// else (`-include`), because `cpu.hpp` must not see the macros of missing instructions before the compiler's own headers.
#pragma once

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <cpuid.h>
#include <simde/x86/avx512.h>

#include <cstring>

// Intrinsics that Debian 12's version of SIMDe lacks or names wrongly.

#undef _mm512_madd_epi16
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)

template <class Lane, class Vector, class Combine>
Lane emulated_reduce(Vector x, Combine combine) {
    Lane lanes[16];
    std::memcpy(lanes, &x, sizeof lanes);
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] = combine(lanes[i], lanes[i + half]);
    return lanes[0];
}

template <class Lane>
Lane emulated_sum(Lane a, Lane b) {
    return a + b;
}

template <class Lane>
Lane emulated_max(Lane a, Lane b) {
    return a > b ? a : b;
}

#ifndef _mm512_reduce_add_ps
#define _mm512_reduce_add_ps(x) emulated_reduce<float>(x, emulated_sum<float>)
#define _mm512_reduce_add_epi32(x) emulated_reduce<int32_t>(x, emulated_sum<int32_t>)
#define _mm512_reduce_max_epi32(x) emulated_reduce<int32_t>(x, emulated_max<int32_t>)
#endif

typedef int32_t emulated_ints __attribute__((vector_size(64)));

#ifndef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps(x) ((__m512)__builtin_convertvector((emulated_ints)(x), __m512))
#endif

#ifndef _mm512_cvtepi8_epi32
inline __m512i emulated_cvtepi8(__m128i x) {
    typedef int8_t bytes __attribute__((vector_size(16)));
    return (__m512i)__builtin_convertvector((bytes)x, emulated_ints);
}
#define _mm512_cvtepi8_epi32(x) emulated_cvtepi8(x)
#endif

#ifndef _mm512_shuffle_f32x4
#define _mm512_shuffle_f32x4(a, b, order) simde_mm512_shuffle_f32x4(a, b, order)
#endif

#ifndef _mm512_cvtph_ps
inline __m512 emulated_cvtph(__m256i x) {
    const __m256 halves[] = {_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))};
    __m512 result;
    std::memcpy(&result, halves, sizeof result);
    return result;
}
#define _mm512_cvtph_ps(x) emulated_cvtph(x)
#endif

#ifndef _mm512_cmpneq_epi16_mask
inline uint32_t emulated_cmpneq(__m512i a, __m512i b) {
    uint16_t x[32], y[32];
    std::memcpy(x, &a, sizeof x);
    std::memcpy(y, &b, sizeof y);
    uint32_t mask = 0;
    for (int i = 0; i < 32; i++) mask |= uint32_t(x[i] != y[i]) << i;
    return mask;
}
#define _mm512_cmpneq_epi16_mask(a, b) emulated_cmpneq(a, b)
#endif

// Macros that `cpu.hpp` looks for.

#define __builtin_cpu_supports(name) true
#define __get_cpuid_count(leaf, subleaf, eax, ebx, ecx, edx) (*(eax) = *(ebx) = *(ecx) = *(edx) = ~0U, 1)

#ifdef EMULATES_512
#define __AVX512F__
#define __AVX512BW__
#define __AVX512VL__
#define __AVX512DQ__
#define asm(names_a_register_of_512_bits) static_cast<void>(0)
#endif

#if defined(EMULATES_512) && defined(EMULATES_VNNI)
#define __AVX512VNNI__
#elif defined(EMULATES_VNNI)
#define __AVXVNNI__
#define _mm256_dpbusd_avx_epi32(sum, a, b) simde_mm256_dpbusd_epi32(sum, a, b)
#define _mm256_dpwssd_avx_epi32(sum, a, b) simde_mm256_dpwssd_epi32(sum, a, b)
#endif
