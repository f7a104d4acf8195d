// Products with one row of activations on x86. To turn weights so that lanes are rows, as panels do, is most of the
// work then; here each row's bytes are multiplied where they lie, 32 at a time, and only the integer sums of blocks are
// brought into lanes. Those are exact and all else is the panels' own code, so results are the same to the last bit.
#pragma once

#include "row_scales.hpp"
#include "tile.hpp"

namespace products {

#if defined(INSTRUCTION_SET_512) || defined(INSTRUCTION_SET_256)

constexpr bool HAS_ONE_ROW = true;

constexpr int WORDS = 8;

inline words load_bytes(const void* from) {
    words x;
    std::memcpy(&x, from, sizeof x);
    return simd::in_register(x);
}

// Sums of two products, in 16 bits. (Where HAS_PAIRS; there bytes of eight bits are signed.)
template <class Format>
words multiply_words(words weights, words activations) {
    __m256i magnitudes = (__m256i)weights, factors = (__m256i)activations;
    if constexpr (Format::WEIGHT_BITS == 8) {
        factors = _mm256_sign_epi8(factors, magnitudes);
        magnitudes = _mm256_abs_epi8(magnitudes);
    }
    return (words)_mm256_maddubs_epi16(magnitudes, factors);
}

// Sums of two of them times their factors.
inline words dot_word_pairs(words pairs, words factors) {
    return (words)_mm256_madd_epi16((__m256i)pairs, (__m256i)factors);
}

template <class Format>
words dot_words(words weights, words activations) {
    if constexpr (HAS_PAIRS) return dot_word_pairs(multiply_words<Format>(weights, activations), words{} + 0x00010001);
#if defined(__AVX512VNNI__)
    return (words)_mm256_dpbusd_epi32(__m256i{}, (__m256i)weights, (__m256i)activations);
#elif defined(__AVXVNNI__)
    return dot(words{}, weights, activations);
#endif
}

inline words look_up_words(const ByteTable& table, words places) {
    const __m256i bytes = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i*)table.bytes));
    return (words)_mm256_shuffle_epi8(bytes, (__m256i)places);
}

inline Two nibbles(words bytes) { return {bytes & 0x0f0f0f0f, (bytes >> 4) & 0x0f0f0f0f}; }

// 16 bytes hold 16 weights in their low halves and 16 others in their high halves.
inline words nibbles_of_block(const uint8_t* from) {
    const __m256i twice = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)from));
    return (words)_mm256_srlv_epi32(twice, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4)) & 0x0f0f0f0f;
}

// Conversion of the bytes of a row to the weights of a block of 32.

template <int HEAD, int BITS, int CENTRE>
words weights_of(Nibbles<HEAD, BITS, CENTRE> format, const uint8_t* block) {
    const words low = nibbles_of_block(block + format.NIBBLES);
    if constexpr (BITS == 5) return low | (byte_mask(load_as<uint32_t>(block + HEAD)) & 0x10101010);
    else return low;
}

template <int HEAD, int BITS, int CENTRE, const ByteTable& TABLE>
words weights_of(NibblesLookedUp<HEAD, BITS, CENTRE, TABLE> format, const uint8_t* block) {
    return look_up_words(TABLE, nibbles_of_block(block + format.NIBBLES));
}

inline words weights_of(Q8_0, const uint8_t* block) {
    return load_bytes(block + 2) ^ static_cast<int>(0x01010101U * Q8_0::BIAS);
}

// Superblocks are done in PASSES, each of two blocks of 32 weights.
constexpr int PASSES = 4;

template <int BITS>
Two weights_of(SixBitSuperblocks<BITS> format, const uint8_t* superblock, int pass) {
    const Two low = nibbles(load_bytes(superblock + format.NIBBLES + 32 * pass));
    if constexpr (BITS == 4) return low;
    const words bits = load_bytes(superblock + format.FIFTH_BITS) >> (2 * pass);
    return {low.first | ((bits & 0x01010101) << 4), low.second | ((bits & 0x02020202) << 3)};
}

inline Two weights_of(Q2_K, const uint8_t* superblock, int pass) {
    const words pairs = load_bytes(superblock + Q2_K::PAIRS + 32 * (pass / 2)) >> (4 * (pass % 2));
    return {pairs & 0x03030303, (pairs >> 2) & 0x03030303};
}

inline Two weights_of(Q3_K, const uint8_t* superblock, int pass) {
    const words pairs = load_bytes(superblock + Q3_K::PAIRS + 32 * (pass / 2)) >> (4 * (pass % 2));
    const words bits = load_bytes(superblock) >> (2 * pass);
    return {(pairs & 0x03030303) | ((bits & 0x01010101) << 2),
            ((pairs >> 2) & 0x03030303) | ((bits & 0x02020202) << 1)};
}

inline Two weights_of(Q6_K, const uint8_t* superblock, int pass) {
    const uint8_t* bytes = superblock + 64 * (pass / 2);
    const int half = 4 * (pass % 2);
    const words pairs = load_bytes(superblock + Q6_K::PAIRS + 32 * (pass / 2)) >> half;
    return {((load_bytes(bytes) >> half) & 0x0f0f0f0f) | ((pairs & 0x03030303) << 4),
            ((load_bytes(bytes + 32) >> half) & 0x0f0f0f0f) | ((pairs & 0x0c0c0c0c) << 2)};
}

inline Two weights_of(IQ4_XS, const uint8_t* superblock, int pass) {
    const uint8_t* blocks = superblock + IQ4_XS::NIBBLES + 32 * pass;
    return {look_up_words(IQ4_VALUES, nibbles_of_block(blocks)),
            look_up_words(IQ4_VALUES, nibbles_of_block(blocks + 16))};
}

template <class Format, int... NUMBERS>
ALWAYS_INLINE Two weights_of(const GridSuperblocks<Format, NUMBERS...>& format, const uint8_t* superblock, int pass) {
    return format.weights(superblock, pass);
}

// Number of additions of neighbours before a sum of four products needs more than 16 bits, where adding is cheaper.
template <class Format>
constexpr int EXACT_LEVELS = Format::WEIGHT_BITS <= 5 ? 2 : Format::WEIGHT_BITS == 6 ? 1 : 0;

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
ALWAYS_INLINE auto gather_rows(int row, const DotsOfRow& dots) {
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
ALWAYS_INLINE void put_dots(words low, words high, int column, int eight, Dots<Format>& dots) {
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
    const Format format{};
#pragma GCC unroll 4
    for (int pass = 0; pass < PASSES; pass++) {
        const int column = 64 * pass;
        rows.prefetch->step(WORDS * Format::BLOCK_BYTES / PASSES);
        const words a = load_bytes(row.bytes + column), b = load_bytes(row.bytes + column + 32);
        const auto of_row = [&](int number) {
            const Two weights = weights_of(format, rows.first + number * rows.stride, pass);
            return Two{dot_words<Format>(weights.first, a), dot_words<Format>(weights.second, b)};
        };
        const Two low = gather_rows<EXACT_LEVELS<Format>, 4>(0, of_row);
        const Two high = gather_rows<EXACT_LEVELS<Format>, 4>(4, of_row);
        put_dots<Format>(low.first, high.first, column, eight, dots);
        put_dots<Format>(low.second, high.second, column + 32, eight, dots);
    }
}

// The words of four rows each, summed, in the order of the rows.
inline words sums_of_rows(words low, words high) {
    const Two halves = by_halves(low, high);
    return halves.first + halves.second;
}

inline Two sums_of_rows(Two low, Two high) {
    return {sums_of_rows(low.first, high.first), sums_of_rows(low.second, high.second)};
}

// True if offsets differ from scales.
template <class Format>
constexpr bool HAS_OWN_OFFSETS = Format::HAS_OFFSETS && Format::TWICE_CENTRE == 0;

// True if the pairs of a row are multiplied by its scales at once, so that only one word of each row is left to be
// brought into a lane. Else dot products come into lanes first, and so do scales, as in panels: that is less work for
// Q4_K and Q5_K, whose dot products fit into 16 bits, and whose scales and offsets are hard to unpack row by row.
// (`docs/measurements.md`, Products)
template <class Format>
constexpr bool is_scaled_by_row() {
    if constexpr (HAS_PAIRS && Format::HAS_INTEGER_SCALES) return Format::BLOCK == 16 || !HAS_OWN_OFFSETS<Format>;
    else return false;
}

// Sums of two products of 64 columns.
template <class Format>
ALWAYS_INLINE Two multiply_pass(const Format& format, const uint8_t* superblock, int pass, Two activations) {
    if constexpr (Format::HAS_SIGNS_APART) {
        const Two magnitudes = format.magnitudes(superblock, pass), negative = format.negative(superblock, pass);
        const auto turned = [](words x, words negative) {
            return (words)(((bytes_of_words)x ^ (bytes_of_words)negative) - (bytes_of_words)negative);
        };
        return {multiply_words<Format>(magnitudes.first, turned(activations.first, negative.first)),
                multiply_words<Format>(magnitudes.second, turned(activations.second, negative.second))};
    } else {
        const Two weights = weights_of(format, superblock, pass);
        return {multiply_words<Format>(weights.first, activations.first),
                multiply_words<Format>(weights.second, activations.second)};
    }
}

// Of one row's superblock: products times scales, and sums times offsets if they are not the scales.
template <class Format>
ALWAYS_INLINE auto multiply_scaled(const Format& format, const uint8_t* superblock, const Activations<Format>& row,
                                   words sums) {
    const RowScales numbers = scales_of(format, superblock);
    words total{};
#pragma GCC unroll 4
    for (int pass = 0; pass < PASSES; pass++) {
        const auto* bytes = row.bytes + 64 * pass;
        const Two pairs = multiply_pass(format, superblock, pass, {load_as<words>(bytes), load_as<words>(bytes + 32)});
        total += dot_word_pairs(pairs.first, scales_of_32(numbers.scales, 2 * pass));
        total += dot_word_pairs(pairs.second, scales_of_32(numbers.scales, 2 * pass + 1));
    }
    if constexpr (HAS_OWN_OFFSETS<Format>) return Two{total, dot_word_pairs(numbers.offsets, sums)};
    else if constexpr (Format::HAS_SIGNS_APART) return 2 * total;
    else if constexpr (Format::HAS_OFFSETS) return centred<Format>(total, dot_word_pairs(numbers.scales, sums));
    else return total;
}

// Of a superblock of eight rows.
template <class Format>
ALWAYS_INLINE Two multiply_scaled(PackedRows rows, const Activations<Format>& row) {
    words sums{};
    if constexpr (Format::HAS_OFFSETS) sums = sums_as_scales<Format::BLOCK>(row.sums);
    const Format format{};
    const auto of_row = [&](int number) {
        if (number % 2 == 0) rows.prefetch->step(2 * Format::BLOCK_BYTES);
        return multiply_scaled<Format>(format, rows.first + number * rows.stride, row, sums);
    };
    const auto total = sums_of_rows(gather_rows<0, 4>(0, of_row), gather_rows<0, 4>(4, of_row));
    if constexpr (HAS_OWN_OFFSETS<Format>) return total;
    else return {total, words{}};
}

// Adds a superblock's products with one row of activations to its sums; `panel` is room for units.
template <class Format>
void multiply_scaled_row(PackedRows rows, bool is_first, const Activations<Format>* row, typename Format::Panel& panel,
                         float (*sums)[ROWS]) {
    words products[ROWS / WORDS], offsets[ROWS / WORDS];
    for (int eight = 0; eight < ROWS / WORDS; eight++) {
        const Two found = multiply_scaled<Format>(rows.from(eight * WORDS * rows.stride), *row);
        products[eight] = found.first;
        offsets[eight] = found.second;
    }
    Format::unpack_units(rows, panel);
    Registers<floats, 1> totals;
    for (int vector = 0; vector < VECTORS; vector++) {
        ints of_products, of_offsets;
        std::memcpy(&of_products, products + vector * (LANES / WORDS), sizeof of_products);
        std::memcpy(&of_offsets, offsets + vector * (LANES / WORDS), sizeof of_offsets);
        totals[0][vector] = total_of_panel<Format>(panel, vector, of_products, of_offsets);
    }
    add_totals<Format, 1>(totals, row, is_first, sums);
}

// Of a block of eight rows.
template <class Format>
ALWAYS_INLINE void multiply_blocks(const uint8_t* first, size_t stride, const Activations<Format>& row, int block,
                                   int eight, Dots<Format>& dots) {
    const words activations = load_bytes(row.bytes + block * Format::BLOCK);
    const auto of_row = [&](int number) {
        return dot_words<Format>(weights_of(Format{}, first + number * stride), activations);
    };
    constexpr int LEVELS = EXACT_LEVELS<Format>;
    put_dots<Format>(gather_rows<LEVELS, 4>(0, of_row), gather_rows<LEVELS, 4>(4, of_row), block * Format::BLOCK, eight,
                     dots);
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

// Adds the dot products of one block to its initial value.
template <class Format>
void add_dots(const Dots<Format>& dots, int block, Registers<ints, 1>& of_block) {
    for (int vector = 0; vector < VECTORS; vector++) {
        ints of_vector;
        std::memcpy(&of_vector, dots[block] + vector * (LANES / WORDS), sizeof of_vector);
        of_block[0][vector] += of_vector;
    }
}

// Adds a panel's products, block by block; `panel` is room for scales and offsets.
template <class Format>
void multiply_row_of_blocks(PackedRows rows, int64_t depth, bool is_first, const Activations<Format>* row,
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

// Adds a panel's products with one row of activations to its sums; `panel` is room for unpacked weights.
template <class Format>
void multiply_one_row(PackedRows rows, int64_t depth, bool is_first, const Activations<Format>* row,
                      typename Format::Panel& panel, float (*sums)[ROWS]) {
    if constexpr (is_scaled_by_row<Format>()) multiply_scaled_row<Format>(rows, is_first, row, panel, sums);
    else multiply_row_of_blocks<Format>(rows, depth, is_first, row, panel, sums);
}

#else

constexpr bool HAS_ONE_ROW = false;

template <class Format>
void multiply_one_row(PackedRows rows, int64_t depth, bool is_first, const Activations<Format>* row,
                      typename Format::Panel& panel, float (*sums)[ROWS]);

#endif

}  // namespace products
