// Products with one row of activations on x86. To turn weights so that lanes are rows, as panels do, is most of the
// work then; here each row's bytes are multiplied where they lie, 32 at a time, and only the integer sums of blocks are
// brought into lanes. Those are exact and all else is the panels' own code, so results are the same to the last bit.
#pragma once

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

// How the bytes of a row become weights: of a block of 32.

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

// How often neighbours can be added before a sum of four products needs more than 16 bits, where adding is cheaper.
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
