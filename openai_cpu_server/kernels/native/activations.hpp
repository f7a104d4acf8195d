// Activations as bytes: for each row and panel, with a scale for each UNIT of columns and a sum for each block.
#pragma once

#include <cstring>
#include <type_traits>

#include "panel.hpp"

namespace products {

template <class Format>
struct Activations {
    // Addend of a block beside its dot product: the bias times the sum of its bytes, exact and ready to start the
    // dot product with; or, where weights have offsets, the sum that these are multiplied by, of bytes or of numbers.
    using SumForOffset = std::conditional_t<Format::HAS_INTEGER_SCALES, int16_t, float>;
    using Sum = std::conditional_t<Format::HAS_OFFSETS, SumForOffset, int32_t>;

    int8_t bytes[PANEL_DEPTH];
    Sum sums[PANEL_DEPTH / Format::BLOCK];
    float scales[PANEL_DEPTH / Format::UNIT];
};

inline ints bits_of(floats x) {
    ints bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

// The largest magnitude. Compared as integers, so that a NaN is the largest: a row with a NaN gives only NaN.
template <int COUNT>
float largest_magnitude(const float* numbers) {
    ints magnitudes{};
    for (int i = 0; i < COUNT; i += LANES) {
        const ints next = bits_of(simd::load(numbers + i)) & 0x7fffffff;
        magnitudes = next > magnitudes ? next : magnitudes;
    }
    const int32_t bits = largest(magnitudes);
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return number;
}

// Rounds to the nearest: the sum with 1.5 * 2^23 has the integer in its low bits.
inline ints rounded(floats x) { return bits_of(x + 12582912.0F) - 0x4b400000; }

// Sets the bytes of one block and returns their sum.
template <int COUNT>
int32_t quantise_block(const float* numbers, float per_scale, int8_t* bytes) {
    ints sums{};
    for (int i = 0; i < COUNT; i += LANES) {
        const ints integers = rounded(simd::load(numbers + i) * per_scale);
        store_bytes(bytes + i, integers);
        sums += integers;
    }
    return total(sums);
}

template <class Format>
typename Activations<Format>::Sum block_sum(int32_t of_bytes, float scale) {
    if constexpr (!Format::HAS_OFFSETS) return -Format::BIAS * of_bytes;
    else if constexpr (Format::HAS_INTEGER_SCALES) return static_cast<int16_t>(of_bytes);
    else if constexpr (Format::UNIT == Format::BLOCK) return static_cast<float>(of_bytes) * scale;
    else return static_cast<float>(of_bytes);
}

// The first `depth` columns of a panel of one row.
template <class Format>
void quantise_panel(const float* numbers, int depth, Activations<Format>& panel) {
    constexpr int UNIT = Format::UNIT, BLOCK = Format::BLOCK;
    for (int start = 0; start < depth; start += UNIT) {
        const float scale = largest_magnitude<UNIT>(numbers + start) * (1 / 127.0F);
        const float per_scale = scale > 0 ? 1.0F / scale : 0.0F;
        panel.scales[start / UNIT] = scale;
        for (int column = start; column < start + UNIT; column += BLOCK) {
            const int32_t sum = quantise_block<BLOCK>(numbers + column, per_scale, panel.bytes + column);
            panel.sums[column / BLOCK] = block_sum<Format>(sum, scale);
        }
    }
}

}  // namespace products
