// A tile: ROWS rows of weights times up to TILE_WIDTH rows of activations, panel by panel.
#pragma once

#include "activations.hpp"
#include "unpack_32.hpp"
#include "unpack_k.hpp"

namespace products {

constexpr int TILE_WIDTH = 128;  // its sums and an unpacked panel lie in the first two caches

using Sums = float[TILE_WIDTH][ROWS];

// The sums of GROUP rows of activations that are in registers while a panel is multiplied.
template <int WIDTH>
struct Registers {
    simd::Floats of[WIDTH][simd::VECTORS];
};

template <class Format>
simd::Ints dot(simd::Ints sum, simd::Ints weights, simd::Ints activations) {
    if constexpr (Format::HAS_WHOLE_BYTES) return simd::dot_bytes(sum, weights, activations);
    else return simd::dot(sum, weights, activations);
}

// The integer products of one block, less the bias.
template <class Format, int WIDTH>
inline __attribute__((always_inline)) void multiply_block(const typename Format::Panel& panel,
                                                          const Activations<Format>* rows, int block,
                                                          simd::Ints (&dots)[WIDTH][simd::VECTORS]) {
    for (int row = 0; row < WIDTH; row++)
        for (int vector = 0; vector < simd::VECTORS; vector++)
            if constexpr (Format::BIAS != 0) dots[row][vector] = simd::spread(rows[row].sums[block]);
            else dots[row][vector] = simd::spread(0);
    constexpr int COLUMNS = Format::BLOCK / 4;
    const Column* columns = panel.columns + block * COLUMNS;
    const int start = block * Format::BLOCK;
#pragma GCC unroll 8
    for (int column = 0; column < COLUMNS; column++) {
        simd::Ints weights[simd::VECTORS];
        for (int vector = 0; vector < simd::VECTORS; vector++)
            weights[vector] = simd::load(columns[column] + vector * simd::LANES);
        for (int row = 0; row < WIDTH; row++) {
            const simd::Ints word = simd::spread(simd::load_word(rows[row].bytes + start + 4 * column));
            for (int vector = 0; vector < simd::VECTORS; vector++)
                dots[row][vector] = dot<Format>(dots[row][vector], weights[vector], word);
        }
    }
}

// Scales the products of one block and adds the offsets.
template <class Format, int WIDTH>
inline __attribute__((always_inline)) void add_block(const typename Format::Panel& panel,
                                                     const Activations<Format>* rows, int block,
                                                     const simd::Ints (&dots)[WIDTH][simd::VECTORS],
                                                     Registers<WIDTH>& sums) {
    for (int vector = 0; vector < simd::VECTORS; vector++) {
        const simd::Floats scale = simd::load(panel.scales[block] + vector * simd::LANES);
        for (int row = 0; row < WIDTH; row++) {
            simd::Floats both = scale;
            if constexpr (Format::UNIT == Format::BLOCK)
                both = simd::multiply(scale, simd::spread(rows[row].scales[block]));
            simd::Floats& sum = sums.of[row][vector];
            sum = simd::multiply_add(simd::to_floats(dots[row][vector]), both, sum);
            if constexpr (Format::HAS_OFFSETS) {
                const simd::Floats offset = simd::load(panel.offsets[block] + vector * simd::LANES);
                sum = simd::multiply_add(offset, simd::spread(rows[row].sums[block]), sum);
            }
        }
    }
}

// Adds a panel's products with WIDTH rows of activations to their sums.
template <class Format, int WIDTH>
__attribute__((noinline)) void multiply_group(const typename Format::Panel& panel, const Activations<Format>* rows, int num_blocks,
                    float (*sums)[ROWS]) {
    Registers<WIDTH> totals{};
    for (int block = 0; block < num_blocks; block++) {
        simd::Ints dots[WIDTH][simd::VECTORS];
        multiply_block<Format, WIDTH>(panel, rows, block, dots);
        add_block<Format, WIDTH>(panel, rows, block, dots, totals);
    }
    for (int row = 0; row < WIDTH; row++)
        for (int vector = 0; vector < simd::VECTORS; vector++) {
            float* sum = sums[row] + vector * simd::LANES;
            const bool is_scaled = Format::UNIT == Format::BLOCK;
            const simd::Floats scale = simd::spread(is_scaled ? 1.0F : rows[row].scales[0]);
            simd::store(sum, simd::multiply_add(totals.of[row][vector], scale, simd::load(sum)));
        }
}

// Adds a panel's products with `width` rows of activations, in groups of nearly equal size.
template <class Format, int GROUP = simd::GROUP>
void multiply_panel(const typename Format::Panel& panel, const Activations<Format>* rows, int width, int num_blocks,
                    float (*sums)[ROWS]) {
    if constexpr (GROUP > 0) {
        for (; width >= GROUP; width -= GROUP, rows += GROUP, sums += GROUP)
            multiply_group<Format, GROUP>(panel, rows, num_blocks, sums);
        multiply_panel<Format, GROUP - 1>(panel, rows, width, num_blocks, sums);
    }
}

}  // namespace products
