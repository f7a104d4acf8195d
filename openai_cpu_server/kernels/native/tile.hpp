// A tile: ROWS rows of weights times up to TILE_WIDTH rows of activations, panel by panel.
#pragma once

#include "activations.hpp"
#include "unpack_32.hpp"
#include "unpack_grid.hpp"
#include "unpack_k.hpp"

namespace products {

constexpr int TILE_WIDTH = 126;  // whole groups, whose sums and panel lie in the first two caches

using Sums = float[TILE_WIDTH][ROWS];

// Sums of WIDTH rows of activations, for all rows of weights.
template <class Vector, int WIDTH>
using Registers = Vector[WIDTH][VECTORS];

template <class Format>
pairs multiply_as(ints weights, ints activations) {
    if constexpr (Format::WEIGHT_BITS == 8) return multiply_byte_pairs(weights, activations);
    else return multiply_pairs(weights, activations);
}

template <class Format>
ints dot_as(ints sum, ints weights, ints activations) {
    if constexpr (HAS_PAIRS) return dot_pairs(sum, multiply_as<Format>(weights, activations), pairs{} + 1);
    else return dot(sum, weights, activations);
}

// Number of columns whose pairs of products can be summed in 16 bits.
template <class Format>
constexpr int COLUMNS_AT_ONCE =
    std::clamp(32767 / (2 * 128 * ((1 << Format::WEIGHT_BITS) - 1)), 1, Format::BLOCK / 4);

// The factors of a block's pairs: its scales, where they are integers.
template <class Format>
pairs factors_of(const typename Format::Panel& panel, int block, int vector) {
    if constexpr (Format::HAS_INTEGER_SCALES) return panel.scales[block][vector];
    else return pairs{} + 1;
}

// Adds the products of AT_ONCE columns of a block, the first of them `column`.
template <class Format, int WIDTH, int AT_ONCE>
ALWAYS_INLINE void multiply_columns(const typename Format::Panel& panel, const Activations<Format>* rows, int block,
                                    int column, Registers<ints, WIDTH>& dots) {
    const Column* columns = panel.columns + block * (Format::BLOCK / 4) + column;
    const int start = block * Format::BLOCK + 4 * column;
    if constexpr (!HAS_PAIRS) {
        for (int row = 0; row < WIDTH; row++) {
            const ints word = splat_word(rows[row].bytes + start);
            for (int vector = 0; vector < VECTORS; vector++)
                dots[row][vector] = dot(dots[row][vector], columns[0][vector], word);
        }
    } else {
        Registers<pairs, WIDTH> sums{};
#pragma GCC unroll 8
        for (int column = 0; column < AT_ONCE; column++) {
            Column weights;
            for (int vector = 0; vector < VECTORS; vector++)
                weights[vector] = simd::in_register(columns[column][vector]);
            for (int row = 0; row < WIDTH; row++) {
                const ints word = splat_word(rows[row].bytes + start + 4 * column);
                for (int vector = 0; vector < VECTORS; vector++)
                    sums[row][vector] =
                        simd::in_register(sums[row][vector] + multiply_as<Format>(weights[vector], word));
            }
        }
        for (int vector = 0; vector < VECTORS; vector++) {
            const pairs factors = simd::in_register(factors_of<Format>(panel, block, vector));
            for (int row = 0; row < WIDTH; row++)
                dots[row][vector] = simd::in_register(dot_pairs(dots[row][vector], sums[row][vector], factors));
        }
    }
}

// Adds the products of one block.
template <class Format, int WIDTH>
ALWAYS_INLINE void multiply_block(const typename Format::Panel& panel, const Activations<Format>* rows, int block,
                                  Registers<ints, WIDTH>& dots) {
    constexpr int NUM_COLUMNS = Format::BLOCK / 4, AT_ONCE = HAS_PAIRS ? COLUMNS_AT_ONCE<Format> : 1;
    static_assert(NUM_COLUMNS % AT_ONCE == 0);
#pragma GCC unroll 8
    for (int column = 0; column < NUM_COLUMNS; column += AT_ONCE)
        multiply_columns<Format, WIDTH, AT_ONCE>(panel, rows, block, column, dots);
}

// Initial value of the products of one block: the bias.
template <class Format, int WIDTH>
ALWAYS_INLINE void begin_block(const Activations<Format>* rows, int block, Registers<ints, WIDTH>& dots) {
    for (int row = 0; row < WIDTH; row++)
        for (ints& sum : dots[row])
            if constexpr (Format::BIAS != 0) sum = splat(rows[row].sums[block]);
            else sum = ints{};
}

// Adds the products of one block, times its scales.
template <class Format, int WIDTH>
ALWAYS_INLINE void add_scaled_block(const typename Format::Panel& panel, const Activations<Format>* rows, int block,
                                    Registers<ints, WIDTH>& dots) {
    if constexpr (HAS_PAIRS) multiply_block<Format, WIDTH>(panel, rows, block, dots);  // scales are its factors
    else {
        Registers<ints, WIDTH> of_block;
        begin_block<Format, WIDTH>(rows, block, of_block);
        multiply_block<Format, WIDTH>(panel, rows, block, of_block);
        for (int vector = 0; vector < VECTORS; vector++)
            for (int row = 0; row < WIDTH; row++)
                dots[row][vector] += of_block[row][vector] * panel.scales[block][vector];
    }
}

// Scales the products of one block and adds the offsets.
template <class Format, int WIDTH>
ALWAYS_INLINE void add_block(const typename Format::Panel& panel, const Activations<Format>* rows, int block,
                             const Registers<ints, WIDTH>& dots, Registers<floats, WIDTH>& totals) {
    for (int vector = 0; vector < VECTORS; vector++) {
        const floats scale = panel.scales[block][vector];
        for (int row = 0; row < WIDTH; row++) {
            floats& total = totals[row][vector];
            if constexpr (Format::UNIT == Format::BLOCK)
                total = simd::multiply_add(to_floats(dots[row][vector]), scale * rows[row].scales[block], total);
            else total = simd::multiply_add(to_floats(dots[row][vector]), scale, total);
            if constexpr (Format::HAS_OFFSETS)
                total = simd::multiply_add(panel.offsets[block][vector], simd::splat(rows[row].sums[block]), total);
        }
    }
}

// Adds a panel's totals to the sums, or sets the sums if they are empty.
template <class Format, int WIDTH>
ALWAYS_INLINE void add_totals(const Registers<floats, WIDTH>& totals, const Activations<Format>* rows, bool is_first,
                              float (*sums)[ROWS]) {
    for (int row = 0; row < WIDTH; row++)
        for (int vector = 0; vector < VECTORS; vector++) {
            float* sum = sums[row] + vector * LANES;
            const float scale = Format::UNIT == Format::BLOCK ? 1.0F : rows[row].scales[0];
            const floats before = is_first ? floats{} : simd::load(sum);
            simd::store(sum, simd::multiply_add(totals[row][vector], simd::splat(scale), before));
        }
}

// For a panel with integer scales: the sums of all blocks' activations times their offsets.
template <class Format, int WIDTH>
ALWAYS_INLINE void sum_offsets(const typename Format::Panel& panel, const Activations<Format>* rows, Registers<ints,
                               WIDTH>& offsets) {
#pragma GCC unroll 8
    for (int two = 0; two < Format::Panel::NUM_BLOCKS / 2; two++)
        for (int row = 0; row < WIDTH; row++) {
            const pairs sums = (pairs)splat_word(reinterpret_cast<const int8_t*>(rows[row].sums + 2 * two));
            for (int vector = 0; vector < VECTORS; vector++)
                offsets[row][vector] =
                    simd::in_register(dot_pairs(offsets[row][vector], sums, panel.offsets[two][vector]));
        }
}

// Of integers, twice what has been summed less TWICE_CENTRE for each of the scales: exact, so it is the same wherever
// it is done.
template <class Format, class Vector>
Vector centred(Vector products, Vector scales) {
    return 2 * products - Format::TWICE_CENTRE * scales;
}

// For a panel with integer scales: the value of the sums over all its blocks, and of those of offsets.
template <class Format>
floats total_of_panel(const typename Format::Panel& panel, int vector, ints products, ints offsets) {
    const floats unit = panel.unit[vector];
    if constexpr (!Format::HAS_OFFSETS || Format::TWICE_CENTRE != 0) return to_floats(products) * unit;
    else return simd::multiply_add(to_floats(products), unit, to_floats(offsets) * panel.offset_unit[vector]);
}

// For a panel with integer scales: turns the sums over all its blocks into totals, offsets added.
template <class Format, int WIDTH>
ALWAYS_INLINE void total_of_blocks(const typename Format::Panel& panel, const Activations<Format>* rows,
                                   const Registers<ints, WIDTH>& dots, Registers<floats, WIDTH>& totals) {
    Registers<ints, WIDTH> offsets{};
    if constexpr (Format::HAS_OFFSETS) sum_offsets<Format, WIDTH>(panel, rows, offsets);
    for (int row = 0; row < WIDTH; row++)
        for (int vector = 0; vector < VECTORS; vector++) {
            ints products = dots[row][vector];
            if constexpr (Format::TWICE_CENTRE != 0) products = centred<Format>(products, offsets[row][vector]);
            totals[row][vector] = total_of_panel<Format>(panel, vector, products, offsets[row][vector]);
        }
}

// A panel of weights, its number of blocks, and whether products are added to the sums.
template <class Format>
struct UnpackedPanel {
    const typename Format::Panel& weights;
    int num_blocks;
    bool is_first;
};

// Adds a panel's products with WIDTH rows of activations to their sums. Not inlined, so that registers are its own.
template <class Format, int WIDTH>
__attribute__((noinline)) void multiply_group(const UnpackedPanel<Format>& panel, const Activations<Format>* rows,
                                              float (*sums)[ROWS]) {
    Registers<floats, WIDTH> totals;
    if constexpr (Format::HAS_INTEGER_SCALES) {
        Registers<ints, WIDTH> dots{};
        for (int block = 0; block < panel.num_blocks; block++)
            add_scaled_block<Format, WIDTH>(panel.weights, rows, block, dots);
        total_of_blocks<Format, WIDTH>(panel.weights, rows, dots, totals);
    } else {
        for (auto& row : totals)
            for (floats& total : row) total = floats{};
        for (int block = 0; block < panel.num_blocks; block++) {
            Registers<ints, WIDTH> dots;
            begin_block<Format, WIDTH>(rows, block, dots);
            multiply_block<Format, WIDTH>(panel.weights, rows, block, dots);
            add_block<Format, WIDTH>(panel.weights, rows, block, dots, totals);
        }
    }
    add_totals<Format, WIDTH>(totals, rows, panel.is_first, sums);
}

// Adds a panel's products with `width` rows of activations, in groups of at most WIDTH.
template <class Format, int WIDTH = GROUP>
void multiply_panel(const UnpackedPanel<Format>& panel, const Activations<Format>* rows, int width,
                    float (*sums)[ROWS]) {
    if constexpr (WIDTH > 0) {
        for (; width >= WIDTH; width -= WIDTH, rows += WIDTH, sums += WIDTH)
            multiply_group<Format, WIDTH>(panel, rows, sums);
        multiply_panel<Format, WIDTH - 1>(panel, rows, width, sums);
    }
}

}  // namespace products
