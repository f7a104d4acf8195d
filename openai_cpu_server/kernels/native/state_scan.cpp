// State space models, token by token: a state decays, takes in x * dt along B, and is read along C. In Mamba 2 the
// whole state of a head decays alike; in Mamba 1 a head is one row, each of whose values decays by itself.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "recurrent.hpp"
#include "simd.hpp"

namespace recurrent {
namespace {

using namespace simd;

enum Source { STATE, X, DT, A, B, C, IDS };
constexpr int BLOCK = 32;                         // rows, or Mamba 1's heads, of a piece
constexpr int PASS = REGISTERS == 32 ? 8 : 4;     // rows that registers hold the sums of

const char* at(const ggml_tensor& tensor, size_t offset) { return static_cast<const char*>(tensor.data) + offset; }

// The same formula as in ggml.
float softplus(float x) { return x > 20.0F ? x : std::log(1.0F + std::exp(x)); }

class Scan : public Task {
public:
    Scan(const ggml_tensor& node, States states)
        : node_{node},
          states_{std::move(states)},
          width_{static_cast<int>(node.src[STATE]->ne[0])},
          rows_{node.src[STATE]->ne[1]},
          heads_{node.src[X]->ne[1]},
          num_tokens_{node.src[X]->ne[2]},
          num_sequences_{node.src[X]->ne[3]},
          has_decays_{node.src[A]->ne[0] > 1},
          steps_(num_sequences_ * num_tokens_ * heads_),
          decays_(has_decays_ ? 0 : steps_.size()) {}

    void compute(const ggml_compute_params& params) const override {
        const int64_t rows = heads_ * rows_, blocks = (rows + BLOCK - 1) / BLOCK, count = num_sequences_ * blocks;
        if (params.ith == 0) ggml().chunk_set(params.threadpool, params.nth);
        set_steps(params);
        ggml().barrier(params.threadpool);
        for (int64_t i = params.ith; i < count; i = ggml().chunk_add(params.threadpool, 1)) {
            const int64_t first = i % blocks * BLOCK, end = std::min(first + BLOCK, rows);
            if (has_decays_) compute_single_rows(i / blocks, first, end);
            else compute_rows(i / blocks, first, end);
        }
    }

private:
    // Computes this thread's part of the values that all rows of a head share.
    void set_steps(const ggml_compute_params& params) const {
        const int64_t tokens = num_sequences_ * num_tokens_;
        for (int64_t i = tokens * params.ith / params.nth; i < tokens * (params.ith + 1) / params.nth; ++i)
            for (int64_t head = 0; head < heads_; ++head) {
                const float step = softplus(dt(i / num_tokens_, i % num_tokens_)[head]);
                steps_[i * heads_ + head] = step;
                if (!has_decays_)
                    decays_[i * heads_ + head] = std::exp(step * static_cast<const float*>(node_.src[A]->data)[head]);
            }
    }
    int64_t of_head(int64_t sequence, int64_t token, int64_t head) const {
        return (sequence * num_tokens_ + token) * heads_ + head;
    }

    // Rows are numbered through all heads.
    const float* x(int64_t sequence, int64_t token) const { return row(X, 2, sequence, token); }
    const float* dt(int64_t sequence, int64_t token) const { return row(DT, 1, sequence, token); }
    const float* group_of(Source source, int64_t sequence, int64_t token, int64_t head) const {
        const int64_t group = head / (heads_ / node_.src[B]->ne[1]);
        return row(source, 2, sequence, token) + group * width_;
    }
    const float* row(Source source, int axis, int64_t sequence, int64_t token) const {
        const ggml_tensor& tensor = *node_.src[source];
        return reinterpret_cast<const float*>(at(tensor, token * tensor.nb[axis] + sequence * tensor.nb[axis + 1]));
    }
    float* results(int64_t sequence, int64_t token) const {
        return static_cast<float*>(node_.data) + (sequence * num_tokens_ + token) * heads_ * rows_;
    }

    // Rows of one head or several, a few of one head at a time.
    void compute_rows(int64_t sequence, int64_t first, int64_t end) const {
        for (int64_t next; first < end; first = next) {
            next = std::min({first + PASS, end, (first / rows_ + 1) * rows_});
            if (next - first == PASS) compute_pass<PASS>(sequence, first);
            else
                for (int64_t one = first; one < next; ++one) compute_pass<1>(sequence, one);
        }
    }

    template <int COUNT>
    void compute_pass(int64_t sequence, int64_t first) const {
        const int64_t head = first / rows_;
        const float* from = states_.from[sequence] + first * width_;
        float* const to = states_.to.row(sequence) + first * width_;
        for (int64_t token = 0; token < num_tokens_; ++token, from = to) {
            const float step = steps_[of_head(sequence, token, head)];
            const floats decay = splat(decays_[of_head(sequence, token, head)]);
            const float *b = group_of(B, sequence, token, head), *c = group_of(C, sequence, token, head);
            floats taken[COUNT], sums[COUNT] = {};
            for (int row = 0; row < COUNT; ++row) taken[row] = splat(x(sequence, token)[first + row] * step);
            for (int i = 0; i < width_; i += LANES)
                for (int row = 0; row < COUNT; ++row) {
                    const floats old = load(from + row * width_ + i);
                    const floats state = multiply_add(load(b + i), taken[row], old * decay);
                    store(to + row * width_ + i, state);
                    sums[row] = multiply_add(state, load(c + i), sums[row]);
                }
            for (int row = 0; row < COUNT; ++row) results(sequence, token)[first + row] = total(sums[row]);
            keep(to, COUNT, token);
        }
    }

    // Rows that are heads, each with decays of its own.
    void compute_single_rows(int64_t sequence, int64_t first, int64_t end) const {
        for (int64_t head = first; head < end; ++head) {
            const float* from = states_.from[sequence] + head * width_;
            float* const to = states_.to.row(sequence) + head * width_;
            const float* a = static_cast<const float*>(node_.src[A]->data) + head * width_;
            for (int64_t token = 0; token < num_tokens_; ++token, from = to) {
                const float step = steps_[of_head(sequence, token, head)];
                const floats taken = splat(x(sequence, token)[head] * step);
                const float *b = group_of(B, sequence, token, head), *c = group_of(C, sequence, token, head);
                floats sum{};
                for (int i = 0; i < width_; i += LANES) {
                    const floats decay = simd::exp(step * load(a + i));
                    const floats state = multiply_add(load(b + i), taken, load(from + i) * decay);
                    store(to + i, state);
                    sum = multiply_add(state, load(c + i), sum);
                }
                results(sequence, token)[head] = total(sum);
            }
        }
    }

    void keep(float* rows, int64_t count, int64_t token) const {
        const int64_t earlier = num_tokens_ - 1 - token;
        if (earlier == 0 || earlier >= states_.num_kept) return;
        std::memcpy(reinterpret_cast<char*>(rows) + earlier * states_.earlier, rows, sizeof(float) * count * width_);
    }

    const ggml_tensor& node_;
    States states_;
    int width_;
    int64_t rows_, heads_, num_tokens_, num_sequences_;
    bool has_decays_;
    mutable std::vector<float> steps_, decays_;  // (sequences, tokens, heads)
};

}  // namespace

bool is_known_scan(const ggml_tensor& node) {
    for (int i = STATE; i < IDS; ++i)
        if (node.src[i]->type != GGML_TYPE_F32 || node.src[i]->nb[0] != sizeof(float)) return false;
    const ggml_tensor &state = *node.src[STATE], &x = *node.src[X], &b = *node.src[B], &c = *node.src[C];
    const bool is_whole = state.ne[0] % 16 == 0 && state.nb[1] == sizeof(float) * state.ne[0] &&
                          state.nb[2] == state.nb[1] * state.ne[1];
    const bool has_dense_rows = x.nb[1] == sizeof(float) * x.ne[0] && b.nb[1] == sizeof(float) * b.ne[0] &&
                                c.nb[1] == sizeof(float) * c.ne[0];
    const bool has_known_decays = node.src[A]->ne[0] == 1 || (state.ne[1] == 1 && node.op_params[0] == 1);
    return is_whole && has_dense_rows && x.ne[1] % b.ne[1] == 0 && has_known_decays;
}

States states_of_scan(const ggml_tensor& node) {
    const ggml_tensor &state = *node.src[STATE], &x = *node.src[X];
    const auto* ids = static_cast<const int32_t*>(node.src[IDS]->data);
    States states;
    for (int64_t i = 0; i < x.ne[3]; ++i)
        states.from.push_back(reinterpret_cast<const float*>(at(state, ids[i] * state.nb[3])));
    states.to = {static_cast<char*>(node.data) + sizeof(float) * x.ne[0] * x.ne[1] * x.ne[2] * x.ne[3], state.nb[3]};
    states.earlier = state.nb[3] * x.ne[3];
    states.num_kept = node.op_params[0];
    return states;
}

std::unique_ptr<Task> scan(const ggml_tensor& node, States states) {
    return std::make_unique<Scan>(node, std::move(states));
}

}  // namespace recurrent
