// Formats in superblocks of 256 weights whose magnitudes are looked up by eights or fours in a grid: IQ2_XXS, IQ2_XS,
// IQ2_S, IQ3_XXS, IQ3_S. A grid has no place in a vector, so a panel is unpacked row by row, then turned.
#pragma once

#include "ggml_api.hpp"
#include "unpack_k.hpp"

namespace products {

typedef int8_t bytes_of_words __attribute__((vector_size(32)));
typedef uint64_t quads_of_words __attribute__((vector_size(32)));

template <class Number>
Number load_as(const void* from) {
    Number number;
    std::memcpy(&number, from, sizeof number);
    return number;
}

// -1 in each byte whose bit is set.
ALWAYS_INLINE words byte_mask(uint32_t bits) {
    constexpr auto EACH_BIT = static_cast<int64_t>(0x8040201008040201);
#if defined(INSTRUCTION_SET_512) || defined(INSTRUCTION_SET_256)
    const __m256i places = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), places);
    const __m256i bit = _mm256_set1_epi64x(EACH_BIT);
    return (words)_mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
#else
    constexpr uint64_t TO_EACH_BYTE = 0x0101010101010101;
    const quads_of_words bytes{(bits & 255) * TO_EACH_BYTE, (bits >> 8 & 255) * TO_EACH_BYTE,
                               (bits >> 16 & 255) * TO_EACH_BYTE, (bits >> 24) * TO_EACH_BYTE};
    return (words)((bytes_of_words)(bytes & EACH_BIT) != 0);
#endif
}

// The low seven bits of each byte, and an eighth that makes the number of bits even.
inline uint64_t with_parity(uint64_t sevens) {
    uint64_t odd = sevens ^ sevens >> 4;
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    return sevens | (odd & 0x0101010101010101) << 7;
}

// The signs of 64 weights, seven bits for eight of them.
inline uint64_t signs_of_sevens(uint64_t bits) {
#if defined(__BMI2__)
    return with_parity(_pdep_u64(bits, 0x7f7f7f7f7f7f7f7f));
#else
    uint64_t sevens = (bits & 0x000000000fffffff) | (bits & 0x00fffffff0000000) << 4;
    sevens = (sevens & 0x00003fff00003fff) | (sevens & 0x0fffc0000fffc000) << 2;
    return with_parity((sevens & 0x007f007f007f007f) | (sevens & 0x3f803f803f803f80) << 1);
#endif
}

// Entries of a format's grid: the magnitudes of 8 weights (or 4), a byte each. They are ggml's own, found by
// unpacking superblocks that have each place once.
template <class Format>
struct Grid {
    static constexpr int AT_ONCE = sizeof(typename Format::Entry), IN_SUPERBLOCK = 256 / AT_ONCE;
    typename Format::Entry entries[Format::GRID_SIZE];

    Grid() {
        const auto to_float = ggml().type_traits(Format::TYPE)->to_float;
        for (int first = 0; first < Format::GRID_SIZE; first += IN_SUPERBLOCK) {
            uint8_t superblock[Format::BLOCK_BYTES]{};
            constexpr uint16_t UNIT = (15 - Format::WORTH) << 10;  // in half precision
            std::memcpy(superblock, &UNIT, sizeof UNIT);
            for (int i = 0; i < IN_SUPERBLOCK; i++) Format::put_place(superblock, i, first + i);
            float magnitudes[256];
            to_float(superblock, magnitudes, 256);
            uint8_t bytes[256];
            for (int i = 0; i < 256; i++) bytes[i] = static_cast<uint8_t>(magnitudes[i] + Format::GRID_CENTRE);
            std::memcpy(entries + first, bytes, sizeof bytes);
        }
    }
};

// A format defines the place in its grid of the entry `number` of a block of 32 weights, and which of 64 weights
// are negative. Where the centre is not whole, a weight and its negative differ in all bits. Superblocks begin with
// their unit in half precision, here for weights 2^WORTH times as small.
template <class Format, int BLOCK, int BYTES, int BITS, int GRID_TWICE_CENTRE, int POWER>
class GridSuperblocks : public CentredSuperblocks<BLOCK, BYTES, BITS, 0, GRID_TWICE_CENTRE, POWER> {
    using Base = CentredSuperblocks<BLOCK, BYTES, BITS, 0, GRID_TWICE_CENTRE, POWER>;

public:
    using typename Base::Panel;
    static constexpr bool HAS_SIGNS_APART = GRID_TWICE_CENTRE % 2 == 0;
    static constexpr int WORTH = POWER, CENTRE_TWICE = GRID_TWICE_CENTRE;
    static constexpr float GRID_CENTRE = HAS_SIGNS_APART ? 0.0F : GRID_TWICE_CENTRE / 2.0F;

    // Of a row, the 64 columns from 64 * pass on.
    ALWAYS_INLINE Two weights(const uint8_t* superblock, int pass) const {
        const Two of_pass = magnitudes(superblock, pass), signs = negative(superblock, pass);
        return {with_signs(of_pass.first, signs.first), with_signs(of_pass.second, signs.second)};
    }

    // The same without signs; and -1 for each that is negative.
    ALWAYS_INLINE Two magnitudes(const uint8_t* superblock, int pass) const {
        return {magnitudes_of_block(superblock, 2 * pass), magnitudes_of_block(superblock, 2 * pass + 1)};
    }
    static ALWAYS_INLINE Two negative(const uint8_t* superblock, int pass) {
        const uint64_t signs = Format::signs(superblock, pass);
        return {byte_mask(static_cast<uint32_t>(signs)), byte_mask(static_cast<uint32_t>(signs >> 32))};
    }

    static void unpack(PackedRows rows, Panel& panel) {
        Format::unpack_head(rows, panel);
        const Format format{};
        alignas(64) Two turned[ROWS];
        for (int pass = 0; pass < 4; pass++) {
            rows.prefetch->step(ROWS * BYTES / 4);
            for (int row = 0; row < ROWS; row++) turned[row] = format.weights(rows.first + row * rows.stride, pass);
            for (int part = 0; part < 4; part++)
                transpose_rows(reinterpret_cast<const uint8_t*>(turned) + 16 * part, sizeof *turned,
                               panel.columns + 16 * pass + 4 * part);
        }
    }

protected:
    // Scales are 2 * number + 1.
    static ALWAYS_INLINE void put_odd(ints (&numbers)[Panel::NUM_BLOCKS], int vector, Panel& panel) {
        for (ints& number : numbers) number = 2 * number + 1;
        Base::put_scales(numbers, vector, panel);
    }

private:
    const Grid<Format>& grid_ = grid();

    static const Grid<Format>& grid() {
        static const Grid<Format> grid;
        return grid;
    }

    ALWAYS_INLINE uint64_t entry(const uint8_t* superblock, int block, int number) const {
        return grid_.entries[Format::place(superblock, block, number)];
    }

    ALWAYS_INLINE uint64_t eight(const uint8_t* superblock, int block, int number) const {
        if constexpr (Grid<Format>::AT_ONCE == 8) return entry(superblock, block, number);
        else return entry(superblock, block, 2 * number) | entry(superblock, block, 2 * number + 1) << 32;
    }

    ALWAYS_INLINE words magnitudes_of_block(const uint8_t* superblock, int block) const {
        return (words)quads_of_words{eight(superblock, block, 0), eight(superblock, block, 1),
                                     eight(superblock, block, 2), eight(superblock, block, 3)};
    }

    static ALWAYS_INLINE words with_signs(words of_block, words signs) {
        const auto magnitudes = (bytes_of_words)of_block, negative = (bytes_of_words)signs;
        if constexpr (HAS_SIGNS_APART)
            return (words)((magnitudes ^ negative) - negative + static_cast<int8_t>(GRID_TWICE_CENTRE / 2));
        else return (words)(magnitudes ^ (negative & static_cast<int8_t>(GRID_TWICE_CENTRE)));
    }
};

// Per 32 weights four places in bytes, and a word of signs that ends with the scale.
struct IQ2_XXS : GridSuperblocks<IQ2_XXS, 32, 66, 7, 2 * 43, -3> {
    using Entry = uint64_t;
    static constexpr ggml_type TYPE = GGML_TYPE_IQ2_XXS;
    static constexpr int GRID_SIZE = 256;

    static uint32_t place(const uint8_t* superblock, int block, int number) { return superblock[2 + 8 * block + number]; }
    static void put_place(uint8_t* superblock, int i, int place) { superblock[2 + i / 4 * 8 + i % 4] = uint8_t(place); }
    static uint64_t signs(const uint8_t* superblock, int pass) {
        const uint64_t first = load_as<uint32_t>(superblock + 6 + 16 * pass) & 0x0fffffff;
        const uint64_t second = load_as<uint32_t>(superblock + 14 + 16 * pass) & 0x0fffffff;
        return signs_of_sevens(first | second << 28);
    }

    static void unpack_head(PackedRows rows, Panel& panel) {
        Column blocks[16];
        unpack_units(rows, panel);
        for (int four = 0; four < 4; four++) read_words(rows.from(2 + 16 * four), blocks + 4 * four);
        for (int vector = 0; vector < VECTORS; vector++) {
            ints scales[8];
            for (int block = 0; block < 8; block++) scales[block] = blocks[2 * block + 1][vector] >> 28 & 15;
            put_odd(scales, vector, panel);
        }
    }
};

// Scales of 16 weights: two in each of the last eight bytes.
template <class Format, int BYTES>
struct TwoBitGrid : GridSuperblocks<Format, 16, BYTES, 7, 2 * 43, -3> {
    using Entry = uint64_t;
    using Base = GridSuperblocks<Format, 16, BYTES, 7, 2 * 43, -3>;

    static void unpack_head(PackedRows rows, typename Base::Panel& panel) {
        Column ending[4];
        Base::unpack_units(rows, panel);
        read_words(rows.from(BYTES - 16), ending);
        for (int vector = 0; vector < VECTORS; vector++) {
            ints scales[16];
            for (int block = 0; block < 16; block++)
                scales[block] = ending[2 + block / 8][vector] >> (4 * (block % 8)) & 15;
            Base::put_odd(scales, vector, panel);
        }
    }
};

// 16 bits for eight weights: a place in nine, then the signs.
struct IQ2_XS : TwoBitGrid<IQ2_XS, 74> {
    static constexpr ggml_type TYPE = GGML_TYPE_IQ2_XS;
    static constexpr int GRID_SIZE = 512;

    static uint32_t place(const uint8_t* superblock, int block, int number) {
        return load_as<uint16_t>(superblock + 2 + 8 * block + 2 * number) & 511;
    }
    static void put_place(uint8_t* superblock, int i, int place) {
        superblock[2 + 2 * i] = uint8_t(place);
        superblock[3 + 2 * i] = uint8_t(place >> 8);
    }
    static uint64_t signs(const uint8_t* superblock, int pass) {
        return signs_of_sevens(sevens(superblock + 2 + 16 * pass) | sevens(superblock + 10 + 16 * pass) << 28);
    }

private:
    static uint64_t sevens(const uint8_t* four) {
        return simd::gathered(load_as<uint64_t>(four), 0xfe00fe00fe00fe00);
    }
};

// Low bytes of places, signs, and the places' high pairs of bits.
struct IQ2_S : TwoBitGrid<IQ2_S, 82> {
    static constexpr ggml_type TYPE = GGML_TYPE_IQ2_S;
    static constexpr int GRID_SIZE = 1024;

    static uint32_t place(const uint8_t* superblock, int block, int number) {
        return superblock[2 + 4 * block + number] | (superblock[66 + block] << (8 - 2 * number) & 0x300);
    }
    static void put_place(uint8_t* superblock, int i, int place) {
        superblock[2 + i] = uint8_t(place);
        superblock[66 + i / 4] |= uint8_t(place >> 8 << i % 4 * 2);
    }
    static uint64_t signs(const uint8_t* superblock, int pass) {
        return load_as<uint64_t>(superblock + 34 + 8 * pass);
    }
};

// Places of four weights in bytes, then for each 32 weights a word of signs that ends with the scale.
struct IQ3_XXS : GridSuperblocks<IQ3_XXS, 32, 98, 6, 2 * 31, -1> {
    using Entry = uint32_t;
    static constexpr ggml_type TYPE = GGML_TYPE_IQ3_XXS;
    static constexpr int GRID_SIZE = 256;

    static uint32_t place(const uint8_t* superblock, int block, int number) { return superblock[2 + 8 * block + number]; }
    static void put_place(uint8_t* superblock, int i, int place) { superblock[2 + i] = uint8_t(place); }
    static uint64_t signs(const uint8_t* superblock, int pass) {
        const auto words = load_as<uint64_t>(superblock + 66 + 8 * pass);
        return signs_of_sevens((words & 0x0fffffff) | (words >> 4 & 0x00fffffff0000000));
    }

    static void unpack_head(PackedRows rows, Panel& panel) {
        Column words[8];
        unpack_units(rows, panel);
        read_32_bytes(rows.from(66), words);
        for (int vector = 0; vector < VECTORS; vector++) {
            ints scales[8];
            for (int block = 0; block < 8; block++) scales[block] = words[block][vector] >> 28 & 15;
            put_odd(scales, vector, panel);
        }
    }
};

// Low bytes of places, their ninth bits, signs, and scales of four bits.
struct IQ3_S : GridSuperblocks<IQ3_S, 32, 110, 4, 15, 1> {
    using Entry = uint32_t;
    static constexpr ggml_type TYPE = GGML_TYPE_IQ3_S;
    static constexpr int GRID_SIZE = 512;

    static uint32_t place(const uint8_t* superblock, int block, int number) {
        return superblock[2 + 8 * block + number] | (superblock[66 + block] << (8 - number) & 0x100);
    }
    static void put_place(uint8_t* superblock, int i, int place) {
        superblock[2 + i] = uint8_t(place);
        superblock[66 + i / 8] |= uint8_t(place >> 8 << i % 8);
    }
    static uint64_t signs(const uint8_t* superblock, int pass) {
        return load_as<uint64_t>(superblock + 74 + 8 * pass);
    }

    static void unpack_head(PackedRows rows, Panel& panel) {
        Column ending[4];
        unpack_units(rows, panel);
        read_words(rows.from(94), ending);
        for (int vector = 0; vector < VECTORS; vector++) {
            ints scales[8];
            for (int block = 0; block < 8; block++) scales[block] = ending[3][vector] >> (4 * block) & 15;
            put_odd(scales, vector, panel);
        }
    }
};

}  // namespace products
