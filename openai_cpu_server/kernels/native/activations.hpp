// Activations as bytes: for each row and panel, with a scale for each UNIT of columns and a sum for each block.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "panel.hpp"

namespace products {

template <class Format>
struct Activations {
    // What a block adds beside its dot product: the bias times the sum of its bytes, exact and ready to start the
    // dot product with; or, where weights have offsets, the sum that these are multiplied by.
    using Sum = std::conditional_t<Format::HAS_OFFSETS, float, int32_t>;

    int8_t bytes[PANEL_DEPTH];
    Sum sums[PANEL_DEPTH / Format::BLOCK];
    float scales[PANEL_DEPTH / Format::UNIT];
};

inline int32_t word_at(const void* bytes) {
    int32_t word;
    std::memcpy(&word, bytes, sizeof word);
    return word;
}

// The largest magnitude. Compared as integers, for so a NaN is larger than all: a row with one gives nothing but NaN.
template <int COUNT>
float largest(const float* numbers) {
    int32_t largest = 0;
    for (int i = 0; i < COUNT; i++) largest = std::max(largest, word_at(numbers + i) & 0x7fffffff);
    float number;
    std::memcpy(&number, &largest, sizeof number);
    return number;
}

// Rounds to the nearest: the sum with 1.5 * 2^23 has the integer in its low bits.
inline int32_t rounded(float number) {
    const float shifted = number + 12582912.0F;
    return word_at(&shifted) - 0x4b400000;
}

// Sets COUNT bytes and returns their scale.
template <int COUNT>
float quantise(const float* numbers, int8_t* bytes) {
    const float scale = largest<COUNT>(numbers) / 127.0F;
    const float per_scale = scale > 0 ? 1.0F / scale : 0.0F;
    for (int i = 0; i < COUNT; i++) bytes[i] = static_cast<int8_t>(rounded(numbers[i] * per_scale));
    return scale;
}

template <int COUNT>
int32_t sum(const int8_t* bytes) {
    int32_t sum = 0;
    for (int i = 0; i < COUNT; i++) sum += bytes[i];
    return sum;
}

template <class Format>
typename Activations<Format>::Sum block_sum(const int8_t* bytes, float scale) {
    const int32_t of_bytes = sum<Format::BLOCK>(bytes);
    if constexpr (!Format::HAS_OFFSETS) return -Format::BIAS * of_bytes;
    else if constexpr (Format::UNIT == Format::BLOCK) return static_cast<float>(of_bytes) * scale;
    else return static_cast<float>(of_bytes);
}

// The first `depth` columns of a panel of one row.
template <class Format>
void quantise_panel(const float* numbers, int depth, Activations<Format>& panel) {
    constexpr int UNIT = Format::UNIT, BLOCK = Format::BLOCK;
    for (int start = 0; start < depth; start += UNIT) {
        const float scale = quantise<UNIT>(numbers + start, panel.bytes + start);
        panel.scales[start / UNIT] = scale;
        for (int block = start / BLOCK; block < (start + UNIT) / BLOCK; block++)
            panel.sums[block] = block_sum<Format>(panel.bytes + block * BLOCK, scale);
    }
}

}  // namespace products
