// Many lanes by AMX: queries, keys, weights and values as bf16, softmax as for other lanes.
#pragma once

#include <algorithm>

#include "amx.hpp"
#include "attention_lanes.hpp"
#include "words.hpp"

namespace attention {

// Two numbers as bf16 in a word, rounded to even.
inline ints bf16_pairs(floats low, floats high) {
    const auto rounded = [](floats x) { return (ints)x + 0x7fff + ((ints)x >> 16 & 1); };
    return (rounded(low) >> 16 & 0xffff) | (rounded(high) & ~0xffff);
}

// Cells lie in a tile where they lie in their 32 cells of the pool: a tile sums pairs of them, and a lane's sums are to be
// the same whichever other cells are computed with.
class TileLanes : public ManyLanes {
public:
    static constexpr bool IS_ALIGNED = true;

    void begin(int lanes, int key_width, int value_width, bool) {
        num_groups_ = (lanes + SIDE - 1) / SIDE;
        depth_ = (key_width + 2 * SIDE - 1) / (2 * SIDE);
        ManyLanes::begin(num_groups_ * SIDE, key_width, value_width, true);
        query_tiles_.resize(num_groups_ * depth_ * NUM_WORDS);
        key_rows_.resize(TILE * depth_ * 2 * SIDE);
        value_pairs_.resize(SIDE * value_width);
        value_tiles_.resize(SIDE * value_width);
        weight_tiles_.resize(num_groups_ * NUM_WORDS);
        std::fill_n(query_tiles_.data(), num_groups_ * depth_ * NUM_WORDS, 0);
        std::fill_n(key_rows_.data(), TILE * depth_ * 2 * SIDE, 0);
    }

    void set_query(int lane, const float* query, float scale) {
        uint32_t* to = query_tiles_.data() + lane / SIDE * depth_ * NUM_WORDS + lane % SIDE;
        for (int d = 0; d < key_width_; d += 2, to += SIDE)
            *to = amx::to_bf16(query[d] * scale) | uint32_t{amx::to_bf16(query[d + 1] * scale)} << 16;
    }

    void score(const UnpackedRows& keys) {
        const int row = depth_ * 2 * SIDE;
        for (int cell = 0; cell < TILE; ++cell) round_key(keys.first + cell * keys.stride, key_rows_.data() + cell * row);
        const uint16_t *upper = key_rows_.data(), *lower = upper + SIDE * row;
        const size_t stride = stride_ * sizeof(float);
        for (int group = 0; group < num_groups_; group += 2) {
            const bool has_two = group + 1 < num_groups_;
            const uint32_t* queries = query_tiles_.data() + group * depth_ * NUM_WORDS;
            amx::zero<0>(), amx::zero<1>(), amx::zero<2>(), amx::zero<3>();
            for (int d = 0; d < depth_; ++d) {
                amx::load<4>(upper + d * 2 * SIDE, row * sizeof(uint16_t));
                amx::load<5>(lower + d * 2 * SIDE, row * sizeof(uint16_t));
                amx::load<6>(queries + d * NUM_WORDS);
                multiply<6, 0, 2>();
                if (!has_two) continue;
                amx::load<7>(queries + (depth_ + d) * NUM_WORDS);
                multiply<7, 1, 3>();
            }
            float *first = scores_.data() + group * SIDE, *second = first + SIDE * stride_;
            amx::store<0>(first, stride), amx::store<2>(second, stride);
            if (has_two) amx::store<1>(first + SIDE, stride), amx::store<3>(second + SIDE, stride);
        }
    }

    void add(const UnpackedRows& values) {
        turn_values(values);
        for (int group = 0; group < num_groups_; ++group) round_weights(group), scale_outputs(group);
        for (int group = 0; group < num_groups_; ++group) {
            const Column<float> to = column(outputs_, value_width_, group * SIDE);
            amx::load<6>(weight_tiles_.data() + group * NUM_WORDS);
            int d = 0;
            for (; d + 2 * SIDE <= value_width_; d += 2 * SIDE) add_values<0, 4>(to, d), add_values<1, 5>(to, d + SIDE);
            for (; d < value_width_; d += SIDE) add_values<0, 4>(to, d);
        }
    }

private:
    static constexpr int SIDE = amx::TILE_ROWS;
    static constexpr int NUM_WORDS = amx::TILE_BYTES / sizeof(uint32_t);
    static_assert(TILE == 2 * SIDE, "a tile of cells is the depth of a product with values");

    // Both halves of the cells with some lanes.
    template <int LANE_TILE, int UPPER, int LOWER>
    static void multiply() {
        amx::multiply_bf16<UPPER, 4, LANE_TILE>();
        amx::multiply_bf16<LOWER, 5, LANE_TILE>();
    }

    void round_key(const float* from, uint16_t* to) {
        int d = 0;
        for (; d + 2 * SIDE <= key_width_; d += 2 * SIDE) amx::store_bf16(to + d, from + d);
        for (; d < key_width_; ++d) to[d] = amx::to_bf16(from[d]);
    }

    // Values of 32 cells for each place in a row.
    void turn_values(const UnpackedRows& values) {
        for (int cell = 0; cell < TILE; cell += 2)
            for (int d = 0; d < value_width_; d += LANES) {
                const ints pairs = bf16_pairs(values.load(cell, d), values.load(cell + 1, d));
                std::memcpy(value_pairs_.data() + cell / 2 * value_width_ + d, &pairs, sizeof pairs);
            }
        for (int d = 0; d < value_width_; d += SIDE)
            tiles::transpose_16(value_pairs_.data() + d, value_width_, value_tiles_.data() + d * SIDE);
    }

    void round_weights(int group) {
        for (int cell = 0; cell < TILE; cell += 2)
            for (int lane = 0; lane < SIDE; lane += LANES) {
                const float* weights = scores_.data() + cell * stride_ + group * SIDE + lane;
                const ints pairs = bf16_pairs(simd::load(weights), simd::load(weights + stride_));
                std::memcpy(weight_tiles_.data() + group * NUM_WORDS + cell / 2 * SIDE + lane, &pairs, sizeof pairs);
            }
    }

    // Factors are powers of 2 and nearly always 1.
    void scale_outputs(int group) {
        const float* factors = factor_.data() + group * SIDE;
        if (std::all_of(factors, factors + SIDE, [](float factor) { return factor == 1; })) return;
        const Column<float> to = column(outputs_, value_width_, group * SIDE);
        for (int d = 0; d < value_width_; ++d)
            for (int lane = 0; lane < SIDE; lane += LANES) {
                float* output = to.first + d * to.step + lane;
                simd::store(output, simd::load(output) * simd::load(factors + lane));
            }
    }

    template <int SUMS, int VALUES>
    void add_values(const Column<float>& to, int d) {
        float* outputs = to.first + d * to.step;
        amx::load<SUMS>(outputs, to.step * sizeof(float));
        amx::load<VALUES>(value_tiles_.data() + d * SIDE);
        amx::multiply_bf16<SUMS, VALUES, 6>();
        amx::store<SUMS>(outputs, to.step * sizeof(float));
    }

    int num_groups_ = 0, depth_ = 0;  // tiles of lanes; of a row of keys
    Buffer<uint32_t> query_tiles_;    // (lanes, depth)
    Buffer<uint16_t> key_rows_;       // (cells, depth)
    Buffer<uint32_t> value_pairs_, value_tiles_;
    Buffer<uint32_t> weight_tiles_;
};

}  // namespace attention
