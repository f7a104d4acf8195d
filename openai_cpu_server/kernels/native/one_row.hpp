// Products with one row of activations on x86. To turn weights so that lanes are rows, as panels do, is most of the
// work then; here each row's bytes are multiplied where they lie, 32 at a time, and only the integer sums of blocks are
// brought into lanes. Those are exact and all else is the panels' own code, so results are the same to the last bit.
#pragma once

#include "tile.hpp"

namespace products {

#if defined(INSTRUCTION_SET_512) || defined(INSTRUCTION_SET_256)

constexpr bool HAS_ONE_ROW = true;

// 32 weights of a row as bytes, or what has become of them, also where vectors are wider: that is as long as a block.
typedef int32_t words __attribute__((vector_size(32)));
constexpr int WORDS = 8;

struct Two {
    words first, second;
};

inline words load_bytes(const void* from) {
    words x;
    std::memcpy(&x, from, sizeof x);
    return simd::in_register(x);
}

template <class Format>
words dot_words(words weights, words activations) {
#if defined(INSTRUCTION_SET_256)
    return dot_as<Format>(words{}, weights, activations);
#elif defined(__AVX512VNNI__)
    return (words)_mm256_dpbusd_epi32(__m256i{}, (__m256i)weights, (__m256i)activations);
#else
    const auto widened = [](words x) { return (ints)_mm512_castsi256_si512((__m256i)x); };
    return (words)_mm512_castsi512_si256((__m512i)dot_as<Format>(ints{}, widened(weights), widened(activations)));
#endif
}

inline Two nibbles(words bytes) { return {bytes & 0x0f0f0f0f, (bytes >> 4) & 0x0f0f0f0f}; }

// 16 bytes hold 16 weights in their low halves and 16 others in their high halves.
inline words nibbles_of_block(const uint8_t* from) {
    const __m256i twice = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)from));
    return (words)_mm256_srlv_epi32(twice, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4)) & 0x0f0f0f0f;
}

// 16 in each byte whose bit is set in the word.
inline words fifth_bits(const uint8_t* from) {
    int32_t word;
    std::memcpy(&word, from, sizeof word);
    const __m256i places = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(word), places);
    return (words)_mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit) & 0x10101010;
}

// How the bytes of a row become weights. EXACT_LEVELS: how often neighbours can be added before a sum of four products
// needs more than 16 bits, where adding is cheaper.
template <class Format>
struct RowBytes;

template <>
struct RowBytes<Q4_0> {
    static constexpr int EXACT_LEVELS = 2;
    static words weights(const uint8_t* block) { return nibbles_of_block(block + 2); }
};

template <>
struct RowBytes<Q4_1> {
    static constexpr int EXACT_LEVELS = 2;
    static words weights(const uint8_t* block) { return nibbles_of_block(block + 4); }
};

template <>
struct RowBytes<Q5_0> {
    static constexpr int EXACT_LEVELS = 2;
    static words weights(const uint8_t* block) { return nibbles_of_block(block + 6) | fifth_bits(block + 2); }
};

template <>
struct RowBytes<Q5_1> {
    static constexpr int EXACT_LEVELS = 2;
    static words weights(const uint8_t* block) { return nibbles_of_block(block + 8) | fifth_bits(block + 4); }
};

template <>
struct RowBytes<Q8_0> {
    static constexpr int EXACT_LEVELS = 0;
    static words weights(const uint8_t* block) {
        return load_bytes(block + 2) ^ static_cast<int>(0x01010101U * Q8_0::BIAS);
    }
};

// Superblocks are done in PASSES, each of two vectors of 32 weights, from the column `first` and `APART` behind it.

template <>
struct RowBytes<Q4_K> {
    static constexpr int EXACT_LEVELS = 2, PASSES = 4, APART = 32;
    static int first(int pass) { return 64 * pass; }
    static Two weights(const uint8_t* superblock, int pass) {
        return nibbles(load_bytes(superblock + SuperblockHead::BYTES + 32 * pass));
    }
};

template <>
struct RowBytes<Q5_K> {
    static constexpr int EXACT_LEVELS = 2, PASSES = 4, APART = 32;
    static int first(int pass) { return 64 * pass; }
    static Two weights(const uint8_t* superblock, int pass) {
        const words bits = load_bytes(superblock + SuperblockHead::BYTES) >> (2 * pass);
        const Two low = nibbles(load_bytes(superblock + SuperblockHead::BYTES + 32 + 32 * pass));
        return {low.first | ((bits & 0x01010101) << 4), low.second | ((bits & 0x02020202) << 3)};
    }
};

template <>
struct RowBytes<Q6_K> {
    static constexpr int EXACT_LEVELS = 1, PASSES = 4, APART = 64;
    static int first(int pass) { return 128 * (pass / 2) + 32 * (pass % 2); }
    static Two weights(const uint8_t* superblock, int pass) {
        const words pairs = load_bytes(superblock + 128 + 32 * (pass / 2)) >> (2 * (pass % 2));
        const Two low = nibbles(load_bytes(superblock + 32 * pass));
        return {low.first | ((pairs & 0x03030303) << 4), low.second | (pairs & 0x30303030)};
    }
};

// Sums of neighbours, of a in the lower half of each 128 bits and of b in the upper.
template <bool FITS_16_BITS>
words add_neighbours(words a, words b) {
    if constexpr (FITS_16_BITS)
        return (words)_mm256_madd_epi16(_mm256_packs_epi32((__m256i)a, (__m256i)b), _mm256_set1_epi16(1));
    else return (words)_mm256_hadd_epi32((__m256i)a, (__m256i)b);
}

template <bool FITS_16_BITS>
Two add_neighbours(Two a, Two b) {
    return {add_neighbours<FITS_16_BITS>(a.first, b.first), add_neighbours<FITS_16_BITS>(a.second, b.second)};
}

// Of COUNT rows, up to four; each 128 bits then have the sums of theirs, row by row.
template <int LEVELS, int COUNT, class DotsOfRow>
inline __attribute__((always_inline)) auto gather_rows(int row, const DotsOfRow& dots) {
    if constexpr (COUNT == 1) return dots(row);
    else
        return add_neighbours<COUNT <= 1 << LEVELS>(gather_rows<LEVELS, COUNT / 2>(row, dots),
                                                    gather_rows<LEVELS, COUNT / 2>(row + COUNT / 2, dots));
}

// The lower 128 bits of both, and the upper.
inline Two by_halves(words a, words b) {
    return {(words)_mm256_permute2x128_si256((__m256i)a, (__m256i)b, 0x20),
            (words)_mm256_permute2x128_si256((__m256i)a, (__m256i)b, 0x31)};
}

template <class Format>
using Dots = words[PANEL_DEPTH / Format::BLOCK][ROWS / WORDS];

// Of 32 columns of eight rows: one block, or two of 16 columns. The bias is not yet in them.
template <class Format>
inline __attribute__((always_inline)) void put_dots(words low, words high, int column, int eight, Dots<Format>& dots) {
    const int block = column / Format::BLOCK;
    const Two halves = by_halves(low, high);
    if constexpr (Format::BLOCK == 32) {
        dots[block][eight] = halves.first + halves.second;
    } else {
        dots[block][eight] = halves.first;
        dots[block + 1][eight] = halves.second;
    }
}

// Of a superblock of eight rows.
template <class Format>
void multiply_superblocks(PackedRows rows, const Activations<Format>& row, int eight, Dots<Format>& dots) {
    using Bytes = RowBytes<Format>;
#pragma GCC unroll 4
    for (int pass = 0; pass < Bytes::PASSES; pass++) {
        const int column = Bytes::first(pass);
        rows.prefetch->step(WORDS * Format::BLOCK_BYTES / Bytes::PASSES);
        const words a = load_bytes(row.bytes + column), b = load_bytes(row.bytes + column + Bytes::APART);
        const auto of_row = [&](int number) {
            const Two weights = Bytes::weights(rows.first + number * rows.stride, pass);
            return Two{dot_words<Format>(weights.first, a), dot_words<Format>(weights.second, b)};
        };
        const Two low = gather_rows<Bytes::EXACT_LEVELS, 4>(0, of_row);
        const Two high = gather_rows<Bytes::EXACT_LEVELS, 4>(4, of_row);
        put_dots<Format>(low.first, high.first, column, eight, dots);
        put_dots<Format>(low.second, high.second, column + Bytes::APART, eight, dots);
    }
}

// Of a block of eight rows.
template <class Format>
inline __attribute__((always_inline)) void multiply_blocks(const uint8_t* first, size_t stride,
                                                           const Activations<Format>& row, int block, int eight,
                                                           Dots<Format>& dots) {
    using Bytes = RowBytes<Format>;
    const words activations = load_bytes(row.bytes + block * Format::BLOCK);
    const auto of_row = [&](int number) {
        return dot_words<Format>(Bytes::weights(first + number * stride), activations);
    };
    put_dots<Format>(gather_rows<Bytes::EXACT_LEVELS, 4>(0, of_row), gather_rows<Bytes::EXACT_LEVELS, 4>(4, of_row),
                     block * Format::BLOCK, eight, dots);
}

template <class Format>
int multiply_packed(PackedRows rows, int64_t depth, const Activations<Format>& row, typename Format::Panel& panel,
                    Dots<Format>& dots) {
    const size_t next = WORDS * rows.stride;
    if constexpr (Format::UNIT == PANEL_DEPTH) {
        Format::unpack_head(rows, panel);
        for (int eight = 0; eight < ROWS / WORDS; eight++)
            multiply_superblocks<Format>(rows.from(eight * next), row, eight, dots);
        return Format::Panel::NUM_BLOCKS;
    } else {
        const int num_blocks = static_cast<int>(std::min<int64_t>(PANEL_DEPTH, depth)) / Format::BLOCK;
        for (int block = 0; block < num_blocks; block++) {
            const PackedRows from = rows.from(block * Format::BLOCK_BYTES);
            Format::unpack_head(from, block, panel);
            rows.prefetch->step(ROWS * Format::BLOCK_BYTES / 2);
            for (int eight = 0; eight < ROWS / WORDS; eight++)
                multiply_blocks<Format>(from.first + eight * next, rows.stride, row, block, eight, dots);
        }
        return num_blocks;
    }
}

// Adds the dot products of one block to what it begins with.
template <class Format>
void add_dots(const Dots<Format>& dots, int block, Registers<ints, 1>& of_block) {
    for (int vector = 0; vector < VECTORS; vector++) {
        ints of_vector;
        std::memcpy(&of_vector, dots[block] + vector * (LANES / WORDS), sizeof of_vector);
        of_block[0][vector] += of_vector;
    }
}

// Adds a panel's products with one row of activations to its sums; `panel` is room for scales and offsets.
template <class Format>
void multiply_one_row(PackedRows rows, int64_t depth, bool is_first, const Activations<Format>* row,
                      typename Format::Panel& panel, float (*sums)[ROWS]) {
    Dots<Format> dots;
    const int num_blocks = multiply_packed<Format>(rows, depth, *row, panel, dots);
    Registers<floats, 1> totals{};
    Registers<ints, 1> scaled{};
    for (int block = 0; block < num_blocks; block++) {
        Registers<ints, 1> of_block;
        begin_block<Format, 1>(row, block, of_block);
        add_dots<Format>(dots, block, of_block);
        if constexpr (Format::HAS_INTEGER_SCALES)
            for (int vector = 0; vector < VECTORS; vector++)
                scaled[0][vector] += of_block[0][vector] * number_of(panel.scales[block][vector]);
        else add_block<Format, 1>(panel, row, block, of_block, totals);
    }
    if constexpr (Format::HAS_INTEGER_SCALES) total_of_blocks<Format, 1>(panel, row, scaled, totals);
    add_totals<Format, 1>(totals, row, is_first, sums);
}

#else

constexpr bool HAS_ONE_ROW = false;

template <class Format>
void multiply_one_row(PackedRows rows, int64_t depth, bool is_first, const Activations<Format>* row,
                      typename Format::Panel& panel, float (*sums)[ROWS]);

#endif

}  // namespace products
