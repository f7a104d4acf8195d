// The arithmetic of a tile of cells for some lanes: a lane is a row with one of its heads. Scores become
// weights by the online softmax (arXiv 1805.02867), all in floats. Two layouts do the same for many lanes and
// for few.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "attention_plan.hpp"
#include "attention_rows.hpp"
#include "simd.hpp"

namespace attention {

using simd::floats;
using simd::LANES;

constexpr float MINUS_INFINITY = -INFINITY;
constexpr int ACCUMULATORS = simd::REGISTERS / 2;
constexpr int VECTORS_MAX = 2;  // with these, compilers keep every operand but the factors in registers
constexpr int ACROSS = VECTORS_MAX * LANES;

// Floats at the boundaries of cache lines.
class Buffer {
public:
    void resize(size_t floats) { lines_.resize((floats + 15) / 16); }
    float* data() { return lines_.data()->values; }

private:
    struct alignas(64) Line {
        float values[16];
    };
    std::vector<Line> lines_;
};

// sums[i][j] = the sum over k of x[i][k] * y[k][j], where j counts vectors.
template <int ROWS, int VECTORS>
inline void multiply(const float* x, int x_row, int x_step, const float* y, int y_step, int depth,
                     floats (&sums)[ROWS][VECTORS]) {
    for (auto& row : sums)
        for (floats& sum : row) sum = floats{};
    for (int k = 0; k < depth; ++k) {
        floats ys[VECTORS];
        for (int j = 0; j < VECTORS; ++j) ys[j] = simd::in_register(simd::load(y + k * y_step + j * LANES));
        for (int i = 0; i < ROWS; ++i) {
            const floats factor = simd::splat(x[i * x_row + k * x_step]);
            for (int j = 0; j < VECTORS; ++j) sums[i][j] += factor * ys[j];
        }
    }
}

inline floats finite(floats x) { return x > MINUS_INFINITY ? x : floats{}; }

// Many lanes: they lie side by side in vectors, so that nothing is ever summed across a vector. Queries and outputs of
// lanes that are computed together lie together: columns whose rows are a power of 2 apart would share few places of
// the first cache.
class ManyLanes {
public:
    static constexpr bool READS_POOL = false;

    void begin(int lanes, int key_width, int value_width) {
        key_width_ = key_width;
        value_width_ = value_width;
        stride_ = (lanes + LANES - 1) / LANES * LANES;
        queries_.resize(size_t(key_width) * stride_);
        outputs_.resize(size_t(value_width) * stride_);
        scores_.resize(size_t(TILE) * stride_);
        for (Buffer* each : {&largest_, &sum_, &factor_}) each->resize(stride_);
        std::fill_n(queries_.data(), key_width * stride_, 0.0f);
        std::fill_n(outputs_.data(), value_width * stride_, 0.0f);
        std::fill_n(largest_.data(), stride_, MINUS_INFINITY);
        std::fill_n(sum_.data(), stride_, 0.0f);
    }

    void set_query(int lane, const float* query, float scale) {
        const Column to = column(queries_, key_width_, lane);
        for (int d = 0; d < key_width_; ++d) to.first[d * to.step] = query[d] * scale;
    }

    void score(const UnpackedRows& keys) {
        sweep<VECTORS_MAX>(0, TILE, [&](auto& sums, int cell, int lane, auto step) {
            const float* queries = queries_.data() + lane * key_width_;
            multiply(keys.first + cell * keys.stride, keys.stride, 1, queries, step, key_width_, sums);
            put(sums, scores_.data() + cell * stride_ + lane);
        });
    }

    float* scores(int lane, int cell) { return scores_.data() + cell * stride_ + lane; }
    int lane_step() const { return 1; }
    float* all_scores() { return scores_.data(); }
    int num_scores() const { return TILE * stride_; }

    void soften() {
        for (int lane = 0; lane < stride_; lane += LANES) soften(scores_.data() + lane, lane);
    }

    void add(const UnpackedRows& values) {
        sweep<VECTORS_MAX>(0, value_width_, [&](auto& sums, int d, int lane, auto step) {
            multiply(values.first + d, 1, values.stride, scores_.data() + lane, stride_, TILE, sums);
            accumulate(sums, outputs_.data() + lane * value_width_ + d * step, lane);
        });
    }

    float largest(int lane) { return largest_.data()[lane]; }
    float sum(int lane) { return sum_.data()[lane]; }
    void output(int lane, float* to) {
        const Column from = column(outputs_, value_width_, lane);
        for (int d = 0; d < value_width_; ++d) to[d] = from.first[d * from.step];
    }

private:
    // A lane's numbers.
    struct Column {
        float* first;
        int step;
    };

    Column column(Buffer& of, int width, int lane) const {
        const int start = lane / ACROSS * ACROSS;
        return {of.data() + start * width + lane - start, std::min(ACROSS, stride_ - start)};
    }

    // Calls `block` for each block of rows and vectors of lanes, as large as registers allow.
    template <int VECTORS, class Block>
    void sweep(int lane, int rows, Block block) {
        constexpr int ROWS = ACCUMULATORS / VECTORS;
        for (; lane + VECTORS * LANES <= stride_; lane += VECTORS * LANES)
            for (int row = 0; row < rows; row += ROWS) {
                floats sums[ROWS][VECTORS];
                block(sums, row, lane, std::integral_constant<int, VECTORS * LANES>{});
            }
        if constexpr (VECTORS > 1) sweep<VECTORS / 2>(lane, rows, block);
    }

    template <int ROWS, int VECTORS>
    void put(const floats (&sums)[ROWS][VECTORS], float* to) {
        for (int i = 0; i < ROWS; ++i)
            for (int j = 0; j < VECTORS; ++j) simd::store(to + i * stride_ + j * LANES, sums[i][j]);
    }

    template <int ROWS, int VECTORS>
    void accumulate(const floats (&sums)[ROWS][VECTORS], float* outputs, int lane) {
        for (int j = 0; j < VECTORS; ++j) {
            const floats factor = simd::load(factor_.data() + lane + j * LANES);
            for (int i = 0; i < ROWS; ++i) {
                float* output = outputs + (i * VECTORS + j) * LANES;
                simd::store(output, simd::load(output) * factor + sums[i][j]);
            }
        }
    }

    void soften(float* scores, int lane) {
        const floats before = simd::load(largest_.data() + lane);
        floats largest = before;
        for (int cell = 0; cell < TILE; ++cell)
            largest = simd::max(largest, simd::load(scores + cell * stride_));
        const floats subtrahend = finite(largest), factor = simd::exp(before - subtrahend);
        floats sum = simd::load(sum_.data() + lane) * factor;
        for (int cell = 0; cell < TILE; ++cell) {
            const floats weight = simd::exp(simd::load(scores + cell * stride_) - subtrahend);
            simd::store(scores + cell * stride_, weight);
            sum += weight;
        }
        simd::store(largest_.data() + lane, largest);
        simd::store(factor_.data() + lane, factor);
        simd::store(sum_.data() + lane, sum);
    }

    int key_width_ = 0, value_width_ = 0, stride_ = 0;
    Buffer queries_, outputs_;  // (vectors that are computed together, width, their lanes)
    Buffer scores_;             // (cells of a tile, lanes)
    Buffer largest_, sum_, factor_;
};

// Few lanes: vectors go along the width, for half of a vector of lanes would be empty. Scores lie as (cells, lanes), so
// that a vector has those of several cells, and nothing but the products is summed across one.
class FewLanes {
public:
    static constexpr bool READS_POOL = true;  // a number is converted once for all lanes, which are few

    void begin(int lanes, int key_width, int value_width) {
        key_width_ = key_width;
        value_width_ = value_width;
        lanes_ = 1;
        while (lanes_ < lanes) lanes_ *= 2;
        queries_.resize(size_t(lanes_) * key_width);
        outputs_.resize(size_t(lanes_) * value_width);
        scores_.resize(size_t(lanes_) * TILE);
        std::fill_n(queries_.data(), lanes_ * key_width, 0.0f);
        std::fill_n(outputs_.data(), lanes_ * value_width, 0.0f);
        largest_ = simd::splat(MINUS_INFINITY);
        sum_ = floats{};
    }

    void set_query(int lane, const float* query, float scale) {
        for (int d = 0; d < key_width_; ++d)
            queries_.data()[(d / LANES * lanes_ + lane) * LANES + d % LANES] = query[d] * scale;
    }

    template <class Rows>
    void score(const Rows& keys) {
        with_lanes([&](auto lanes) { score<lanes>(keys); });
    }

    float* scores(int lane, int cell) { return scores_.data() + cell * lanes_ + lane; }
    int lane_step() const { return 1; }
    float* all_scores() { return scores_.data(); }
    int num_scores() const { return lanes_ * TILE; }

    void soften() {
        floats largest = largest_;
        for (int i = 0; i < num_scores(); i += LANES) largest = simd::max(largest, simd::load(scores_.data() + i));
        for (int step = lanes_; step < LANES; step *= 2) largest = simd::max(largest, simd::rotated(largest, step));
        const floats subtrahend = finite(largest), factor = simd::exp(largest_ - subtrahend);
        floats sum = sum_ * factor;
        for (int i = 0; i < num_scores(); i += LANES) {
            const floats weight = simd::exp(simd::load(scores_.data() + i) - subtrahend);
            simd::store(scores_.data() + i, weight);
            sum += weight;
        }
        largest_ = largest;
        sum_ = sum;
        simd::store(factor_, factor);
    }

    template <class Rows>
    void add(const Rows& values) {
        with_lanes([&](auto lanes) { sweep<lanes, VECTORS<lanes>>(0, values); });
    }

    float largest(int lane) { return largest_[lane]; }
    float sum(int lane) {
        float total = 0;
        for (int i = lane; i < LANES; i += lanes_) total += sum_[i];
        return total;
    }
    void output(int lane, float* to) { std::copy_n(outputs_.data() + lane * value_width_, value_width_, to); }

private:
    // Vectors of values that are added at a time: fewer sums would wait for each other, more do not pay.
    template <int ROWS>
    static constexpr int VECTORS = ROWS >= 4 ? 2 : 4;

    // Calls `work` with the number of lanes, which is then known to the compiler.
    template <int ROWS = LANES / 2, class Work>
    void with_lanes(Work work) const {
        if constexpr (ROWS > 1)
            if (lanes_ < ROWS) return with_lanes<ROWS / 2>(work);
        work(std::integral_constant<int, ROWS>{});
    }

    template <int ROWS, class Rows>
    void score(const Rows& keys) {
        constexpr int CELLS = LANES / ROWS;
        for (int cell = 0; cell < TILE; cell += CELLS) {
            simd::store(scores_.data() + cell * ROWS, score_cells<ROWS>(keys, cell));
            keys.step(CELLS * key_width_ / LANES);
        }
    }

    // The scores of as many cells as a vector then has room for: (cells, lanes).
    template <int ROWS, class Rows>
    floats score_cells(const Rows& keys, int cell) {
        constexpr int CELLS = LANES / ROWS;
        floats products[LANES] = {};
        const float* queries = queries_.data();
        const int width = key_width_;
        for (int d = 0; d < width; d += LANES, queries += ROWS * LANES) {
            floats parts[CELLS];
            for (int j = 0; j < CELLS; ++j) parts[j] = simd::in_register(keys.load(cell + j, d));
            for (int i = 0; i < ROWS; ++i) {
                const floats query = simd::in_register(simd::load(queries + i * LANES));
                for (int j = 0; j < CELLS; ++j)
                    products[j * ROWS + i] = simd::multiply_add(query, parts[j], products[j * ROWS + i]);
            }
        }
        return simd::totals(products);
    }

    template <int ROWS, int VECTORS, class Rows>
    void sweep(int d, const Rows& values) {
        for (; d + VECTORS * LANES <= value_width_; d += VECTORS * LANES) {
            floats sums[ROWS][VECTORS] = {};
            for (int cell = 0; cell < TILE; cell += CELLS_A_STEP) {
                for (int i = cell; i < cell + CELLS_A_STEP; ++i) add_values(values, i, d, sums);
                values.step(CELLS_A_STEP * VECTORS);
            }
            for (int i = 0; i < ROWS; ++i)
                for (int j = 0; j < VECTORS; ++j) {
                    float* output = outputs_.data() + i * value_width_ + d + j * LANES;
                    simd::store(output, simd::multiply_add(simd::load(output), simd::splat(factor_[i]), sums[i][j]));
                }
        }
        if constexpr (VECTORS > 1) sweep<ROWS, VECTORS - 1>(d, values);
    }

    template <int ROWS, int VECTORS, class Rows>
    void add_values(const Rows& values, int cell, int d, floats (&sums)[ROWS][VECTORS]) {
        floats parts[VECTORS];
        for (int j = 0; j < VECTORS; ++j) parts[j] = simd::in_register(values.load(cell, d + j * LANES));
        for (int i = 0; i < ROWS; ++i) {
            const floats weight = simd::splat(scores_.data()[cell * ROWS + i]);
            for (int j = 0; j < VECTORS; ++j) sums[i][j] = simd::multiply_add(weight, parts[j], sums[i][j]);
        }
    }

    static constexpr int CELLS_A_STEP = 8;
    int key_width_ = 0, value_width_ = 0;
    int lanes_ = 0;  // a power of 2: those behind the last have queries of 0
    Buffer queries_;  // (width in vectors, lanes, a vector)
    Buffer outputs_;  // (lanes, width)
    Buffer scores_;   // (cells of a tile, lanes)
    floats largest_, sum_;  // of each lane, as often as a vector has room for; sums are yet to be added up
    float factor_[LANES];
};

}  // namespace attention
