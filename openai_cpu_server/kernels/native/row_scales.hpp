// The integer scales of one row's superblock on x86, as they multiply sums of pairs of 16 bits in `one_row.hpp`.
#pragma once

#include "unpack_grid.hpp"

namespace products {

#if defined(INSTRUCTION_SET_512) || defined(INSTRUCTION_SET_256)

// Numbers of 16 bits for each block. Of blocks of 16 weights, the even ones' are in the lower half, the odd ones' in the
// upper; of blocks of 32, both halves have all eight. So number i of a half belongs to the i-th 32 weights.
struct RowScales {
    words scales;
    words offsets{};  // where they are other numbers
};

// 16 bytes, those at even places first.
inline __m128i even_first(__m128i bytes) {
    return _mm_shuffle_epi8(bytes, _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
}

inline words widened(__m128i signed_bytes) { return (words)_mm256_cvtepi8_epi16(signed_bytes); }

// Eight integers to 16 bits, in both halves.
inline words twice_narrowed(words eight) {
    return (words)_mm256_permute4x64_epi64(_mm256_packs_epi32((__m256i)eight, (__m256i)eight), 0x88);
}

inline words each_shifted(uint32_t word, words by) {
    return (words)_mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(word)), (__m256i)by);
}

inline words one_more_than_twice(words eight) { return 2 * eight + 1; }

ALWAYS_INLINE RowScales scales_of(Q2_K, const uint8_t* superblock) {
    const words both = widened(even_first(_mm_loadu_si128((const __m128i*)superblock)));
    return {both & 0x000f000f, (both >> 4) & 0x000f000f};
}

ALWAYS_INLINE RowScales scales_of(Q3_K, const uint8_t* superblock) {
    const auto low = load_as<uint64_t>(superblock + 96);
    const uint64_t high = load_as<uint32_t>(superblock + 104);
    const auto eight = [](uint64_t nibbles, uint64_t pairs) {
        const uint64_t spread = (pairs | pairs << 30) & 0x0303030303030303;
        return static_cast<int64_t>((nibbles & 0x0f0f0f0f0f0f0f0f) | spread << 4);
    };
    const __m128i bytes = _mm_set_epi64x(eight(low >> 4, high >> 4), eight(low, high));
    return {widened(_mm_sub_epi8(even_first(bytes), _mm_set1_epi8(32)))};
}

ALWAYS_INLINE RowScales scales_of(Q6_K, const uint8_t* superblock) {
    return {widened(even_first(_mm_loadu_si128((const __m128i*)(superblock + 192))))};
}

ALWAYS_INLINE RowScales scales_of(IQ4_XS, const uint8_t* superblock) {
    const words low = each_shifted(load_as<uint32_t>(superblock + 4), words{0, 4, 8, 12, 16, 20, 24, 28});
    const words high = each_shifted(load_as<uint16_t>(superblock + 2), words{0, 2, 4, 6, 8, 10, 12, 14});
    return {twice_narrowed(((low & 15) | (high & 3) << 4) - 32)};
}

// Of the second word of each eight bytes.
ALWAYS_INLINE RowScales scales_of(const IQ2_XXS&, const uint8_t* superblock) {
    const auto load = [&](int byte) { return _mm256_loadu_ps(reinterpret_cast<const float*>(superblock + byte)); };
    const __m256i mixed = _mm256_castps_si256(_mm256_shuffle_ps(load(2), load(34), _MM_SHUFFLE(3, 1, 3, 1)));
    const auto words_in_order = (__m256i)_mm256_permute4x64_epi64(mixed, _MM_SHUFFLE(3, 1, 2, 0));
    return {twice_narrowed(one_more_than_twice((words)_mm256_srli_epi32(words_in_order, 28)))};
}

template <class Format, int BYTES>
ALWAYS_INLINE RowScales scales_of(const TwoBitGrid<Format, BYTES>&, const uint8_t* superblock) {
    const auto bytes = load_as<uint64_t>(superblock + BYTES - 8);
    const auto nibbles = [](uint64_t x) { return static_cast<int64_t>(x & 0x0f0f0f0f0f0f0f0f); };
    const words both = widened(_mm_set_epi64x(nibbles(bytes >> 4), nibbles(bytes)));
    return {2 * both + 0x00010001};
}

ALWAYS_INLINE RowScales scales_of(const IQ3_XXS&, const uint8_t* superblock) {
    const __m256i ending = _mm256_loadu_si256((const __m256i*)(superblock + 66));
    return {twice_narrowed(one_more_than_twice((words)_mm256_srli_epi32(ending, 28)))};
}

ALWAYS_INLINE RowScales scales_of(const IQ3_S&, const uint8_t* superblock) {
    const words nibbles = each_shifted(load_as<uint32_t>(superblock + 106), words{0, 4, 8, 12, 16, 20, 24, 28}) & 15;
    return {twice_narrowed(one_more_than_twice(nibbles))};
}

// The scales of the i-th 32 weights: of their two halves, if these are blocks.
ALWAYS_INLINE words scales_of_32(words scales, int i) {
    return (words)_mm256_shuffle_epi8((__m256i)scales, _mm256_set1_epi16(static_cast<int16_t>(2 * i | (2 * i + 1) << 8)));
}

// The sums of blocks of 16 activations in the order of scales; those of blocks of 32 once, and zeros.
template <int BLOCK>
words sums_as_scales(const int16_t* sums) {
    if constexpr (BLOCK == 32) return (words)_mm256_zextsi128_si256(_mm_loadu_si128((const __m128i*)sums));
    const __m256i places = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    const __m256i by_halves = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i*)sums), places);
    return (words)_mm256_permute4x64_epi64(by_halves, _MM_SHUFFLE(3, 1, 2, 0));
}

#endif

}  // namespace products
