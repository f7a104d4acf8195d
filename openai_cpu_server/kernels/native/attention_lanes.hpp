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
using simd::ints;
using simd::LANES;

constexpr float MINUS_INFINITY = -INFINITY;
constexpr float LOG2_E = 1.44269504f;
constexpr int ACCUMULATORS = simd::REGISTERS / 2;
constexpr int VECTORS_MAX = 2;  // with these, compilers keep every operand but the factors in registers
constexpr int ACROSS = VECTORS_MAX * LANES;

// Numbers at the boundaries of cache lines.
template <class Number = float>
class Buffer {
public:
    void resize(size_t numbers) { lines_.resize((numbers + A_LINE - 1) / A_LINE); }
    Number* data() { return lines_.data()->values; }

private:
    static constexpr size_t A_LINE = 64 / sizeof(Number);
    struct alignas(64) Line {
        Number values[A_LINE];
    };
    std::vector<Line> lines_;
};

// sums[i][j] += the sum over k of x[i][k] * y[k][j], where j counts vectors. Numbers are added one by one in the order of
// k, so that a sum that is continued is the one that would have been formed at once.
template <int ROWS, int VECTORS, class Number, class Vector>
inline void multiply(const Number* x, int x_row, int x_step, const Number* y, int y_step, int depth,
                     Vector (&sums)[ROWS][VECTORS]) {
    for (int k = 0; k < depth; ++k) {
        Vector ys[VECTORS];
        for (int j = 0; j < VECTORS; ++j) ys[j] = simd::in_register(simd::load(y + k * y_step + j * LANES));
        for (int i = 0; i < ROWS; ++i) {
            const Vector factor = simd::splat(x[i * x_row + k * x_step]);
            for (int j = 0; j < VECTORS; ++j) sums[i][j] = simd::multiply_add(factor, ys[j], sums[i][j]);
        }
    }
}

inline floats finite(floats x) { return x > MINUS_INFINITY ? x : floats{}; }

// Rows as whole numbers of 16 bits, two in a word. Their length is LENGTH, so that every sum of products of two of them fits
// into 32 bits. A score is then as exact as with queries of half precision (ggml's).
constexpr float LENGTH = 32767;

inline int num_words(int width) { return (width + 2 * LANES - 1) / (2 * LANES) * LANES; }

// Returns the factor that restores the numbers, or NaN if a number of the row is NaN.
inline float round_row(const float* row, int width, int32_t* words) {
    floats squares{};
    for (int d = 0; d < width; d += LANES) squares = simd::multiply_add(simd::load(row + d), simd::load(row + d), squares);
    const float length = std::sqrt(simd::total(squares)), factor = length > 0 ? LENGTH / length : 0;
    const auto whole = [&](int d) {
        const floats x = d < width ? simd::load(row + d) * factor : floats{};
        return (ints)(x + 12582912.0f);  // 1.5 * 2^23: the lowest bits are those of the whole number
    };
    for (int d = 0; d < width; d += 2 * LANES, words += LANES)
        simd::store(words, (whole(d) & 0xffff) | whole(d + LANES) << 16);
    return length / LENGTH;
}

// Many lanes: they lie side by side in vectors, so that nothing is ever summed across a vector. Queries and outputs of
// lanes that are computed together lie together: columns whose rows are a power of 2 apart would share few places of
// the first cache. A lane's result is the same bit for bit whatever lanes are beside it, and whatever cells it does
// not see: sums are formed cell by cell, relative to a power of 2.
class ManyLanes {
public:
    static constexpr bool READS_POOL = false;

    // `is_exact`: multiplies queries and keys as floats, else as whole numbers where that is faster.
    void begin(int lanes, int key_width, int value_width, bool is_exact) {
        key_width_ = key_width;
        value_width_ = value_width;
        has_words_ = HAS_WORDS && !is_exact;
        stride_ = (lanes + LANES - 1) / LANES * LANES;
        key_words_.resize(size_t(TILE) * num_words(key_width));
        query_words_.resize(size_t(num_words(key_width)) * stride_);
        queries_.resize(size_t(key_width) * stride_);
        outputs_.resize(size_t(value_width) * stride_);
        scores_.resize(size_t(TILE) * stride_);
        for (auto* each : {&largest_, &sum_, &factor_, &query_scales_}) each->resize(stride_);
        std::fill_n(query_scales_.data(), stride_, 0.0f);
        if (has_words_) std::fill_n(query_words_.data(), num_words(key_width) * stride_, 0);
        else std::fill_n(queries_.data(), key_width * stride_, 0.0f);
    }

    void set_query(int lane, const float* query, float scale) {
        if (!has_words_) {
            const Column<float> to = column(queries_, key_width_, lane);
            for (int d = 0; d < key_width_; ++d) to.first[d * to.step] = query[d] * scale;
            return;
        }
        query_scales_.data()[lane] = scale * round_row(query, key_width_, key_words_.data());
        const Column<int32_t> to = column(query_words_, num_words(key_width_), lane);
        for (int k = 0; k < num_words(key_width_); ++k) to.first[k * to.step] = key_words_.data()[k];
    }

    // Forgets all cells that have been added.
    void restart() {
        std::fill_n(outputs_.data(), value_width_ * stride_, 0.0f);
        std::fill_n(largest_.data(), stride_, LOWEST);
        std::fill_n(sum_.data(), stride_, 0.0f);
    }

    void score(const UnpackedRows& keys) {
        if (has_words_) return score_words(keys);
        sweep<floats>(TILE, [&](auto& sums, int cell, int lane, int step) {
            for (auto& row : sums) std::fill(std::begin(row), std::end(row), floats{});
            const float* queries = queries_.data() + lane * key_width_;
            multiply(keys.first + cell * keys.stride, keys.stride, 1, queries, step, key_width_, sums);
            put(sums, cell, lane, [](floats sum, int, int) { return sum; });
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
        sweep<floats>(value_width_, [&](auto& sums, int d, int lane, int step) {
            float* outputs = outputs_.data() + lane * value_width_ + d * step;
            each(sums, [&](floats& sum, int i, int j) {
                sum = simd::load(outputs + i * step + j * LANES) * simd::load(factor_.data() + lane + j * LANES);
            });
            multiply(values.first + d, 1, values.stride, scores_.data() + lane, stride_, TILE, sums);
            each(sums, [&](floats sum, int i, int j) { simd::store(outputs + i * step + j * LANES, sum); });
        });
    }

    float largest(int lane) { return largest_.data()[lane]; }
    float sum(int lane) { return sum_.data()[lane]; }
    void output(int lane, float* to) {
        const Column<float> from = column(outputs_, value_width_, lane);
        for (int d = 0; d < value_width_; ++d) to[d] = from.first[d * from.step];
    }

private:
    // A lane's numbers.
    template <class Number>
    struct Column {
        Number* first;
        int step;
    };

    template <class Number>
    Column<Number> column(Buffer<Number>& of, int width, int lane) const {
        const int start = lane / ACROSS * ACROSS;
        return {of.data() + start * width + lane - start, std::min(ACROSS, stride_ - start)};
    }

    // Calls `block` for each block of rows and vectors of lanes, as large as registers allow.
    template <class Vector, int VECTORS = VECTORS_MAX, class Block>
    void sweep(int rows, Block block, int lane = 0) {
        constexpr int ROWS = ACCUMULATORS / VECTORS;
        for (; lane + VECTORS * LANES <= stride_; lane += VECTORS * LANES)
            for (int row = 0; row < rows; row += ROWS) {
                Vector sums[ROWS][VECTORS];
                block(sums, row, lane, VECTORS * LANES);
            }
        if constexpr (VECTORS > 1) sweep<Vector, VECTORS / 2>(rows, block, lane);
    }

    template <int ROWS, int VECTORS, class Vector, class Work>
    static void each(Vector (&sums)[ROWS][VECTORS], Work work) {
        for (int i = 0; i < ROWS; ++i)
            for (int j = 0; j < VECTORS; ++j) work(sums[i][j], i, j);
    }

    template <class Sums, class Score>
    void put(Sums& sums, int cell, int lane, Score score) {
        float* to = scores_.data() + cell * stride_ + lane;
        each(sums, [&](auto sum, int i, int j) { simd::store(to + i * stride_ + j * LANES, score(sum, i, j)); });
    }

    void score_words(const UnpackedRows& keys) {
        const int words = num_words(key_width_);
        float scales[TILE];
        for (int cell = 0; cell < TILE; ++cell)
            scales[cell] = round_row(keys.first + cell * keys.stride, key_width_, key_words_.data() + cell * words);
        sweep<ints>(TILE, [&](auto& sums, int cell, int lane, int step) {
            each(sums, [](ints& sum, int, int) { sum = ints{}; });
            multiply(key_words_.data() + cell * words, words, 1, query_words_.data() + lane * words, step, words, sums);
            put(sums, cell, lane, [&](ints sum, int i, int j) {
                const floats scale = scales[cell + i] * simd::load(query_scales_.data() + lane + j * LANES);
                return __builtin_convertvector(sum, floats) * scale;
            });
        });
    }

    void soften(float* scores, int lane) {
        floats most = simd::splat(2 * LOWEST / LOG2_E);
        for (int cell = 0; cell < TILE; ++cell) most = simd::max(most, simd::load(scores + cell * stride_));
        const floats before = simd::load(largest_.data() + lane);
        const floats largest = simd::max(before, simd::rounded(most * LOG2_E));
        const floats factor = simd::power_of_2(before - largest);
        floats sum = simd::load(sum_.data() + lane) * factor;
        for (int cell = 0; cell < TILE; ++cell) {
            const floats score = simd::max(simd::splat(2 * LOWEST), simd::load(scores + cell * stride_) * LOG2_E);
            const floats weight = simd::exp2_less(score, largest);
            simd::store(scores + cell * stride_, weight);
            sum += weight;
        }
        simd::store(largest_.data() + lane, largest);
        simd::store(factor_.data() + lane, factor);
        simd::store(sum_.data() + lane, sum);
    }

#ifdef INSTRUCTION_SET_PAIRS
    static constexpr bool HAS_WORDS = true;
#else
    static constexpr bool HAS_WORDS = false;
#endif
    static constexpr float LOWEST = -0x1p29f;  // lower than the score of a cell that is seen
    bool has_words_ = false;
    int key_width_ = 0, value_width_ = 0, stride_ = 0;
    Buffer<> queries_, outputs_;   // (vectors that are computed together, width, their lanes)
    Buffer<int32_t> query_words_;  // the same, as whole numbers
    Buffer<int32_t> key_words_;    // (cells of a tile, words)
    Buffer<> scores_;              // (cells of a tile, lanes)
    Buffer<> largest_;             // score of each lane, as a whole logarithm of base 2
    Buffer<> sum_, factor_, query_scales_;
};

// Few lanes: vectors go along the width, because half of a vector of lanes would be empty. Scores lie as (cells, lanes), so
// that a vector has those of several cells, and nothing but the products is summed across one.
class FewLanes {
public:
    static constexpr bool READS_POOL = true;  // a number is converted once for all lanes, which are few

    void begin(int lanes, int key_width, int value_width, bool) {
        key_width_ = key_width;
        value_width_ = value_width;
        lanes_ = 1;
        while (lanes_ < lanes) lanes_ *= 2;
        queries_.resize(size_t(lanes_) * key_width);
        outputs_.resize(size_t(lanes_) * value_width);
        scores_.resize(size_t(lanes_) * TILE);
        std::fill_n(queries_.data(), lanes_ * key_width, 0.0f);
    }

    void restart() {
        std::fill_n(outputs_.data(), lanes_ * value_width_, 0.0f);
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

    float largest(int lane) { return largest_[lane] * LOG2_E; }
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

    // Scores of as many cells as fit into a vector: (cells, lanes).
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
    Buffer<> queries_;  // (width in vectors, lanes, a vector)
    Buffer<> outputs_;  // (lanes, width)
    Buffer<> scores_;   // (cells of a tile, lanes)
    floats largest_, sum_;  // of each lane, repeated to fill a vector; partial sums are not yet added
    float factor_[LANES];
};

}  // namespace attention
