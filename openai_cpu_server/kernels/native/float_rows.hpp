// Formats of weights that are not quantised: F16 and BF16. Activations stay floats. Here lanes are columns: each pair of
// a row of weights and a row of activations has sums of its own in one register, whoever is beside it.
#pragma once

#include "panel.hpp"

namespace products {

template <floats (*LOAD)(const uint16_t*)>
struct Halves {
    static constexpr int BLOCK = 32, UNIT = 32, BLOCK_BYTES = 64;
    static constexpr bool IS_FLOAT = true;
    struct Panel {
        alignas(64) float rows[ROWS][PANEL_DEPTH];
    };

    static floats load(const uint8_t* from) { return LOAD(reinterpret_cast<const uint16_t*>(from)); }

    static ALWAYS_INLINE void unpack(PackedRows rows, int block, Panel& panel) {
        rows.prefetch->step(ROWS * BLOCK_BYTES);
        for (int row = 0; row < ROWS; row++)
            for (int column = 0; column < BLOCK; column += LANES)
                simd::store(panel.rows[row] + block * BLOCK + column, load(rows.first + row * rows.stride + 2 * column));
    }
};

struct F16 : Halves<simd::load_f16> {};
struct BF16 : Halves<simd::load_bf16> {};

#if defined(INSTRUCTION_SET_512) || defined(INSTRUCTION_SET_256)
constexpr bool HAS_F16 = true;
#else
constexpr bool HAS_F16 = false;  // ggml multiplies in half precision there
#endif
#if defined(__AVX512BF16__)
constexpr bool HAS_BF16 = false;  // ggml has an instruction for it
#else
constexpr bool HAS_BF16 = HAS_F16;
#endif

// Adds products with WIDTH rows of activations to their sums. `weights(row, column)` loads as many as there are lanes.
template <int WIDTH, class Rows, class Weights>
void multiply_floats(const Weights& weights, int depth, bool is_first, const Rows* rows, float (*sums)[ROWS]) {
    constexpr int AT_ONCE = LANES / WIDTH;
    for (int first = 0; first < ROWS; first += AT_ONCE) {
        floats dots[LANES]{};
        for (int column = 0; column < depth; column += LANES) {
            floats numbers[WIDTH];
            for (int row = 0; row < WIDTH; row++) numbers[row] = simd::load(rows[row].numbers + column);
#pragma GCC unroll 16
            for (int i = 0; i < AT_ONCE; i++) {
                const floats x = simd::in_register(weights(first + i, column));
#pragma GCC unroll 4
                for (int row = 0; row < WIDTH; row++)
                    dots[row * AT_ONCE + i] = simd::multiply_add(x, numbers[row], dots[row * AT_ONCE + i]);
            }
        }
        float totals[LANES];
        simd::store(totals, simd::totals(dots));
        for (int row = 0; row < WIDTH; row++)
            for (int i = 0; i < AT_ONCE; i++) {
                float& sum = sums[row][first + i];
                sum = totals[row * AT_ONCE + i] + (is_first ? 0.0F : sum);
            }
    }
}

// The same with `width` rows, a quarter of the lanes at once.
template <int WIDTH, class Rows, class Weights>
void multiply_float_rows(const Weights& weights, int depth, bool is_first, const Rows* rows, int width,
                         float (*sums)[ROWS]) {
    for (; width >= WIDTH; width -= WIDTH, rows += WIDTH, sums += WIDTH)
        multiply_floats<WIDTH>(weights, depth, is_first, rows, sums);
    if constexpr (WIDTH > 1) multiply_float_rows<WIDTH / 2>(weights, depth, is_first, rows, width, sums);
}

}  // namespace products
