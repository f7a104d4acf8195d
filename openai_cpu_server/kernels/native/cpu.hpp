// The instruction set that this library is compiled for. The compiler chooses: a machine compiles for its own CPU
// (-march=native), as it does with llama.cpp, so there is one code path in a library, and nothing to dispatch. A
// portable build is several libraries, one for each name below. Their loader chooses by suits_this_cpu().
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define INSTRUCTION_SET_512
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define INSTRUCTION_SET_256
#elif defined(__ARM_NEON)
#define INSTRUCTION_SET_NEON
#endif

#if defined(INSTRUCTION_SET_512) && defined(__AVX512VNNI__) && defined(__AVX512FP16__)
constexpr const char* INSTRUCTION_SET = "avx512fp16";
#elif defined(INSTRUCTION_SET_512) && defined(__AVX512VNNI__)
constexpr const char* INSTRUCTION_SET = "avx512vnni";
#elif defined(INSTRUCTION_SET_512)
constexpr const char* INSTRUCTION_SET = "avx512";
#elif defined(INSTRUCTION_SET_256) && defined(__AVXVNNI__)
constexpr const char* INSTRUCTION_SET = "avxvnni";
#elif defined(INSTRUCTION_SET_256)
constexpr const char* INSTRUCTION_SET = "avx2";
#elif defined(INSTRUCTION_SET_NEON) && defined(__ARM_FEATURE_DOTPROD)
constexpr const char* INSTRUCTION_SET = "neon-dotprod";
#elif defined(INSTRUCTION_SET_NEON)
constexpr const char* INSTRUCTION_SET = "neon";
#else
constexpr const char* INSTRUCTION_SET = "portable";
#endif

#if defined(__x86_64__)
// __builtin_cpu_supports knows the name "avxvnni" in newer compilers only.
inline bool has_avxvnni() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & 1u << 4);
}

inline bool has_avx512fp16() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & 1u << 23);
}
#endif

// Returns true if this CPU has the library's instruction set, because files of one machine may be read by another. AMX
// may be missing: only kernels that have called amx::why_no_tiles() execute it.
inline bool suits_this_cpu() {
#if defined(__x86_64__)
    __builtin_cpu_init();
#ifdef __AVX2__
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return false;
#endif
#ifdef __BMI2__
    if (!__builtin_cpu_supports("bmi2")) return false;
#endif
#ifdef __AVXVNNI__
    if (!has_avxvnni()) return false;
#endif
#ifdef __AVX512F__
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw")) return false;
    if (!__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) return false;
#endif
#ifdef __AVX512VNNI__
    if (!__builtin_cpu_supports("avx512vnni")) return false;
#endif
#ifdef __AVX512VBMI__
    if (!__builtin_cpu_supports("avx512vbmi")) return false;
#endif
#ifdef __AVX512VPOPCNTDQ__
    if (!__builtin_cpu_supports("avx512vpopcntdq")) return false;
#endif
#ifdef __AVX512BF16__
    if (!__builtin_cpu_supports("avx512bf16")) return false;
#endif
#ifdef __AVX512FP16__
    if (!has_avx512fp16()) return false;
#endif
#elif defined(__aarch64__) && defined(__linux__) && defined(__ARM_FEATURE_DOTPROD)
    if (!(getauxval(AT_HWCAP) & HWCAP_ASIMDDP)) return false;
#endif
    return true;
}
